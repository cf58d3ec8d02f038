#include "nvfp4/operators.h"

#include <torch/csrc/Exceptions.h>

#include <array>
#include <optional>
#include <string_view>

#include "dutyfree/op.h"
#include "nvfp4/cuda/operators.h"
#include "nvfp4/gemm.h"
#include "nvfp4/quantize.h"
#include "nvfp4/target.h"
#include "nvfp4/weights.h"

namespace dutyfree::nvfp4 {
namespace {

void define_quantize(Library& m) {
  m.def(
       "tunable_fp4_quantize(Tensor input, Tensor input_scale, SymInt scaling_vector_size=16, "
       "bool is_sf_swizzled_layout=False) -> Tensor[]")
      .impl<&quantize_cpu>(at::kCPU)
      .impl<&quantize_cuda>(at::kCUDA)
      .fake<&quantize_fake>();
}

void define_gemm(Library& m) {
  m.def(
       "nvfp4_gemm(Tensor act_fp4, Tensor weight, Tensor act_sf, Tensor weight_scale, Tensor alpha, "
       "ScalarType output_dtype, SymInt output_buffer_kind=0, "
       "str allowed_backends=\"cutlass,cublaslt,cuda_core\", SymInt[]? group=None, Tensor? bias=None) -> Tensor")
      .impl<&gemm_cpu>(at::kCPU)
      .impl<&gemm_cuda>(at::kCUDA)
      .fake<&gemm_fake>();
}

// The two operators are here as well, so that there is a name for these kernels where the other one is someone else's.
void define_ours(Library& m) {
  define_quantize(m);
  define_gemm(m);
  m.def(
       "fp4_dequantize(Tensor values, Tensor scale_factors, Tensor global_scale, ScalarType dtype=float, "
       "bool is_sf_swizzled_layout=False) -> Tensor")
      .impl<&dequantize_cpu>(at::kCPU)
      .impl<&dequantize_cuda>(at::kCUDA)
      .fake<&dequantize_fake>();
  m.def("swizzle_scale_factors(Tensor scale_factors) -> Tensor").impl<&swizzle>(at::kCPU).fake<&swizzle_fake>();
  m.def("unswizzle_scale_factors(Tensor scale_factors, SymInt rows, SymInt columns) -> Tensor")
      .impl<&unswizzle>(at::kCPU)
      .fake<&unswizzle_fake>();
}

// What is registered at once, since TensorRT-LLM may have brought one of its two operators and not the other. The
// registrations are never taken back; written once each, with the GIL.
struct Group {
  std::string_view name;
  const char* name_space;
  void (*define)(Library& m);
  std::optional<Library> registered;
};
auto& groups = *new std::array<Group, 3>{{
    {"trtllm::tunable_fp4_quantize", "trtllm", &define_quantize, std::nullopt},
    {"trtllm::nvfp4_gemm", "trtllm", &define_gemm, std::nullopt},
    {"dutyfree", "dutyfree", &define_ours, std::nullopt},
}};

PyObject* define_operators(PyObject* /*module*/, PyObject* name) {
  HANDLE_TH_ERRORS
  const char* text = PyUnicode_AsUTF8(name);
  if (text == nullptr) {
    return nullptr;
  }
  for (Group& group : groups) {
    if (group.name == text && !group.registered.has_value()) {
      try {
        group.define(group.registered.emplace(group.name_space, __FILE__, __LINE__));
      } catch (...) {
        group.registered.reset();
        throw;
      }
    }
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* list_of(const std::vector<std::string>& names) {
  PyObject* list = PyList_New(0);
  for (const std::string& name : names) {
    PyObject* text = PyUnicode_FromString(name.c_str());
    if (list == nullptr || text == nullptr || PyList_Append(list, text) != 0) {
      Py_XDECREF(text);
      Py_XDECREF(list);
      return nullptr;
    }
    Py_DECREF(text);
  }
  return list;
}

PyObject* cpu_targets(PyObject* /*module*/, PyObject* /*none*/) { return list_of(target_names()); }

PyObject* cpu_backend_names(PyObject* /*module*/, PyObject* /*none*/) { return list_of(cpu_backends()); }

PyObject* force_cpu_target(PyObject* /*module*/, PyObject* name) {
  HANDLE_TH_ERRORS
  const char* text = PyUnicode_AsUTF8(name);
  if (text == nullptr) {
    return nullptr;
  }
  force_target(text);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* packed_weights_state(PyObject* /*module*/, PyObject* /*none*/) {
  const PackedWeights state = packed_weights();
  return Py_BuildValue("LLLL", static_cast<long long>(state.entries), static_cast<long long>(state.bytes),
                       static_cast<long long>(state.limit), static_cast<long long>(state.made));
}

PyObject* forget_weights(PyObject* /*module*/, PyObject* /*none*/) {
  forget_packed_weights();
  Py_RETURN_NONE;
}

PyObject* limit_weights(PyObject* /*module*/, PyObject* bytes) {
  const long long limit = PyLong_AsLongLong(bytes);
  if (limit == -1 && PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  limit_packed_weights(limit);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"nvfp4_define_operators", define_operators, METH_O,
     "Register an operator of trtllm by its name, or \"dutyfree\": those of ours."},
    {"nvfp4_cpu_targets", cpu_targets, METH_NOARGS, "The CPU targets that this machine can run, the best last."},
    {"nvfp4_cpu_backends", cpu_backend_names, METH_NOARGS, "The backends of nvfp4_gemm on this CPU."},
    {"nvfp4_force_target", force_cpu_target, METH_O, "Run this CPU target's kernels only; an empty string: the best."},
    {"nvfp4_packed_weights", packed_weights_state, METH_NOARGS, "(entries, bytes, limit, made) of the packed weights."},
    {"nvfp4_forget_packed_weights", forget_weights, METH_NOARGS, "Drop all packed weights."},
    {"nvfp4_limit_packed_weights", limit_weights, METH_O, "Bytes that packed weights may take together."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_functions(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace dutyfree::nvfp4
