#include <Python.h>

#include "autotune/python_tuning.h"
#include "autotune/runner_chooser.h"
#include "call/apply_watch.h"
#include "call/autograd.h"
#include "call/backward.h"
#include "call/call_slots.h"
#include "call/node_call.h"
#include "call/op_callable.h"
#include "call/operator_object.h"
#include "nvfp4/operators.h"
#include "seeded_fault.h"
#include "torch_compat/definition.h"
#include "torch_compat/eval_frame.h"
#include "torch_compat/torch_function.h"

namespace {

PyMethodDef methods[] = {
    {"install_call_slots", dutyfree::call::install_call_slots, METH_VARARGS,
     "Let calls of OpOverload and OpOverloadPacket objects skip a Python frame."},
    {"remove_call_slots", dutyfree::call::remove_call_slots, METH_NOARGS, "Undo install_call_slots."},
    {"install_definition_slot", dutyfree::call::install_definition_slot, METH_O,
     "Let calls of CustomOpDef objects skip a Python frame."},
    {"remove_definition_slot", dutyfree::call::remove_definition_slot, METH_NOARGS, "Undo install_definition_slot."},
    {"ask_at_first_calls", dutyfree::call::ask_at_first_calls, METH_O,
     "Call this with every OpOverload or OpOverloadPacket that is called for the first time; None for no more."},
    {"enable_vectorcall", dutyfree::call::enable_vectorcall, METH_O,
     "Let calls of a CallTarget subclass's instances skip the frame of its __call__."},
    {"confirm_python_kernels", dutyfree::call::confirm_python_kernels, METH_VARARGS,
     "Whether the functions in kernels of Library.impl can be read here; from then on they are."},
    {"watch_apply", dutyfree::call::watch_apply, METH_VARARGS,
     "Record no gradient past an `apply` that someone put on torch.autograd.Function or on its nodes' class."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "dutyfree._core",
                          "The C++ core of dutyfree.",
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__core() {
  PyObject* module = PyModule_Create(&definition);
  if (module == nullptr || !dutyfree::torch_compat::initialise_eval_frame() ||
      !dutyfree::torch_compat::initialise_torch_function() || !dutyfree::call::add_operator_type(module) ||
      !dutyfree::call::add_op_callable_type(module) || !dutyfree::call::add_call_target_type(module) ||
      !dutyfree::call::add_node_call_type(module) || !dutyfree::call::add_forward(module) ||
      !dutyfree::call::add_backward(module) || !dutyfree::autotune::add_tuning_functions(module) ||
      !dutyfree::autotune::add_runner_chooser_type(module) || !dutyfree::nvfp4::add_functions(module) ||
      !dutyfree::choose_seeded_fault(module)) {
    Py_XDECREF(module);
    return nullptr;
  }
  dutyfree::torch_compat::listen_for_lost_definitions(&dutyfree::call::Operator::forget_lost);
  return module;
}
