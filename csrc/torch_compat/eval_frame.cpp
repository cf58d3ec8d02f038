#include "torch_compat/eval_frame.h"

namespace dutyfree::torch_compat {
namespace {

// torch._C._dynamo.eval_frame.set_eval_frame; owned for the life of the process. Written once, under the GIL.
PyObject* set_eval_frame = nullptr;
// torch runs in the main interpreter only. Written once, with the above.
PyInterpreterState* interpreter = nullptr;

}  // namespace

bool initialise_eval_frame() {
  if (set_eval_frame != nullptr) {
    return true;
  }
  const PyRef module = PyRef::steal(PyImport_ImportModule("torch._C._dynamo.eval_frame"));
  if (!module) {
    return false;
  }
  interpreter = PyInterpreterState_Get();
  set_eval_frame = PyObject_GetAttrString(module.get(), "set_eval_frame");
  return set_eval_frame != nullptr;
}

bool frame_evaluator_installed() {
  return _PyInterpreterState_GetEvalFrameFunc(interpreter) != &_PyEval_EvalFrameDefault;
}

DynamoDisabled::DynamoDisabled() : prior_(PyRef::steal(PyObject_CallOneArg(set_eval_frame, Py_None))) {}

DynamoDisabled::~DynamoDisabled() {
  if (!prior_ || prior_.get() == Py_None) {
    return;
  }
  // The body's exception, if any, must survive the call that restores Dynamo.
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  const PyRef ignored = PyRef::steal(PyObject_CallOneArg(set_eval_frame, prior_.get()));
  if (!ignored) {
    PyErr_WriteUnraisable(set_eval_frame);
  }
  PyErr_Restore(type, value, traceback);
}

}  // namespace dutyfree::torch_compat
