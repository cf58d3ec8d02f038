#include "autotune/runner_chooser.h"

#include <torch/csrc/Exceptions.h>

#include <memory>
#include <sstream>

#include "autotune/device_work.h"
#include "autotune/tensor_key.h"
#include "autotune/tuned_operator.h"
#include "py_ref.h"

namespace dutyfree::autotune {

std::string TensorKinds::text(const DynamicDims& dynamic) const {
  std::ostringstream text;
  for (std::uint32_t index = 0; index < count_; ++index) {
    const std::uint32_t word = words_[index];
    text << (index == 0 ? "" : ", ");
    if (word == kNone) {
      text << "none";
      continue;
    }
    text << c10::DeviceTypeName(static_cast<c10::DeviceType>((word >> 8U) & 0xFFU), /*lower_case=*/true) << ' '
         << c10::getDtypeNames(static_cast<c10::ScalarType>(word >> 16U)).first << " [";
    for (std::uint32_t dim = 0; dim < (word & 0xFFU); ++dim) {
      text << (dim == 0 ? "" : ", ") << (dim < 64 && (dynamic[index] >> dim & 1U) != 0 ? '~' : '=');
    }
    text << ']';
  }
  return text.str();
}

namespace {

using Outcome = TensorKey::Outcome;

// The word that a runner gets its tactic by. Owned for the life of the process.
PyObject* tactic_keyword = nullptr;

// What one chooser holds. Guarded by the GIL.
struct Chooser {
  // The process's, for good.
  TunedOperator& op;
  // The user's text, before that of the tensors.
  std::string configuration;
  DynamicDims dynamic;
  // callable(*tensors) -> [(name, (runner, tactic)), ...]
  PyRef candidates;
  // Configurations by kinds of tensors: as many as there are combinations of types and devices.
  std::vector<std::pair<TensorKinds, std::uint32_t>> configurations;
  // (runner, tactic) by the tactic's number in `op`; nothing where this chooser never listed it.
  std::vector<PyRef> results;

  static constexpr std::uint32_t kUnknown = ~0U;

  [[gnu::always_inline]] std::uint32_t configuration_of(const TensorKinds& kinds) const noexcept {
    for (const auto& [known, number] : configurations) {
      if (known == kinds) [[likely]] {
        return number;
      }
    }
    return kUnknown;
  }

  std::uint32_t intern(const TensorKinds& kinds) {
    const std::uint32_t known = configuration_of(kinds);
    if (known != kUnknown) {
      return known;
    }
    const std::string tensors = kinds.text(dynamic);
    const std::uint32_t number = op.configuration(configuration.empty() ? tensors : configuration + "; " + tensors);
    configurations.emplace_back(kinds, number);
    return number;
  }

  PyObject* result(int tactic) const noexcept {
    return tactic >= 0 && static_cast<std::size_t>(tactic) < results.size()
               ? results[static_cast<std::size_t>(tactic)].get()
               : nullptr;
  }
};

struct ChooserObject {
  PyObject_HEAD
  Chooser* chooser;  // owned; null until it is initialised
};

Chooser* chooser_of(PyObject* object) { return reinterpret_cast<ChooserObject*>(object)->chooser; }

// One listed tactic.
struct Candidate {
  int tactic;
  PyRef result;  // (runner, tactic)
};

// Asks the runners. Throws python_error.
std::vector<Candidate> list_candidates(Chooser& chooser, PyObject* const* args, Py_ssize_t count) {
  const PyRef callable = PyRef::borrow(chooser.candidates.get());
  const PyRef listed =
      PyRef::steal(PyObject_Vectorcall(callable.get(), args, static_cast<std::size_t>(count), nullptr));
  if (!listed) {
    throw python_error();
  }
  const PyRef sequence = PyRef::steal(PySequence_Fast(listed.get(), "the candidates are no sequence"));
  if (!sequence) {
    throw python_error();
  }
  std::vector<Candidate> result;
  for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(sequence.get()); ++index) {
    const char* name = nullptr;
    PyObject* pair = nullptr;
    PyObject* item = PySequence_Fast_GET_ITEM(sequence.get(), index);
    if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "sO!", &name, &PyTuple_Type, &pair) ||
        PyTuple_GET_SIZE(pair) != 2) {
      PyErr_SetString(PyExc_TypeError, "a candidate is (name, (runner, tactic))");
      throw python_error();
    }
    result.push_back({chooser.op.tactic(name), PyRef::borrow(pair)});
  }
  return result;
}

// Runs one candidate on the call's tensors; what it returns is dropped. Throws python_error.
void run_candidate(PyObject* result, PyObject* tensors) {
  const PyRef keywords = PyRef::steal(PyDict_New());
  if (!keywords || PyDict_SetItem(keywords.get(), tactic_keyword, PyTuple_GET_ITEM(result, 1)) != 0) {
    throw python_error();
  }
  const PyRef done = PyRef::steal(PyObject_Call(PyTuple_GET_ITEM(result, 0), tensors, keywords.get()));
  if (!done) {
    python_error error;
    error.persist();
    throw error;
  }
}

c10::Device device_of(PyObject* const* args, Py_ssize_t count) {
  for (Py_ssize_t index = 0; index < count; ++index) {
    if (args[index] != Py_None && !torch_compat::tensor_impl(args[index])->device().is_cpu()) {
      return torch_compat::tensor_impl(args[index])->device();
    }
  }
  return c10::kCPU;
}

// A call of a kind or key that this chooser has no result for. Throws.
[[gnu::noinline, gnu::cold]] PyObject* choose_anew(Chooser& chooser,
                                                   Outcome outcome,
                                                   const TensorKey& call,
                                                   PyObject* const* args,
                                                   Py_ssize_t count) {
  if (outcome == Outcome::WrongType) {
    PyErr_Format(PyExc_TypeError, "%s: choose takes the call's tensors, and None for those that are missing",
                 chooser.op.name().c_str());
    throw python_error();
  }
  if (outcome == Outcome::TooMany) {
    PyErr_Format(PyExc_ValueError, "%s: choose takes up to %zu tensors with 64 dimensions in all",
                 chooser.op.name().c_str(), kMostTensors);
    throw python_error();
  }
  const std::vector<Candidate> candidates = list_candidates(chooser, args, count);
  if (candidates.empty()) {
    PyErr_Format(PyExc_ValueError, "%s: no runner has a tactic for these tensors", chooser.op.name().c_str());
    throw python_error();
  }
  if (outcome == Outcome::NotPlain) {
    // There is nothing to measure, and a real call of the same sizes would take over what is kept.
    return PyRef::borrow(candidates.front().result.get()).release();
  }
  std::vector<int> tactics;
  for (const Candidate& candidate : candidates) {
    const auto index = static_cast<std::size_t>(candidate.tactic);
    if (index >= chooser.results.size()) {
      chooser.results.resize(index + 1);
    }
    chooser.results[index] = PyRef::borrow(candidate.result.get());
    tactics.push_back(candidate.tactic);
  }
  const KeyView key{chooser.intern(call.kinds()), call.dims()};
  // A choice of a file counts now that its tactic is listed. One of another chooser's under this name stays as it is.
  if (PyObject* result = chooser.result(chooser.op.find(key))) {
    return PyRef::borrow(result).release();
  }
  const PyRef tensors = PyRef::steal(PyTuple_New(count));
  if (!tensors) {
    throw python_error();
  }
  for (Py_ssize_t index = 0; index < count; ++index) {
    PyTuple_SET_ITEM(tensors.get(), index, PyRef::borrow(args[index]).release());
  }
  const Work work = work_on(device_of(args, count), [&](int tactic) {
    const PyRef result = PyRef::borrow(chooser.result(tactic));
    run_candidate(result.get(), tensors.get());
  });
  const int tactic = chooser.op.decide(key, tactics, tactics.front(), work);
  PyObject* result = chooser.result(tactic);
  return PyRef::borrow(result != nullptr ? result : candidates.front().result.get()).release();
}

PyObject* chooser_choose(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  Chooser& chooser = *chooser_of(object);
  TensorKey call;
  const Outcome outcome = call.read(args, static_cast<std::size_t>(count), chooser.dynamic);
  if (outcome == Outcome::Read) [[likely]] {
    const std::uint32_t configuration = chooser.configuration_of(call.kinds());
    if (configuration != Chooser::kUnknown) [[likely]] {
      if (PyObject* result = chooser.result(chooser.op.find({configuration, call.dims()}))) [[likely]] {
        Py_INCREF(result);
        return result;
      }
    }
  }
  HANDLE_TH_ERRORS
  return choose_anew(chooser, outcome, call, args, count);
  END_HANDLE_TH_ERRORS
}

// RunnerChooser(name, configuration, dynamic, candidates)
PyObject* chooser_new(PyTypeObject* type, PyObject* args, PyObject*) {
  const char *name = nullptr, *configuration = nullptr;
  PyObject *dynamic = nullptr, *candidates = nullptr;
  if (!PyArg_ParseTuple(args, "ssO!O", &name, &configuration, &PyTuple_Type, &dynamic, &candidates)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  auto chooser = std::make_unique<Chooser>(Chooser{.op = tuned_operator(name),
                                                   .configuration = configuration,
                                                   .dynamic = {},
                                                   .candidates = PyRef::borrow(candidates),
                                                   .configurations = {},
                                                   .results = {}});
  for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(dynamic); ++index) {
    Py_ssize_t tensor = 0, dim = 0;
    PyObject* pair = PyTuple_GET_ITEM(dynamic, index);
    if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "nn", &tensor, &dim) || tensor < 0 ||
        tensor >= static_cast<Py_ssize_t>(kMostTensors) || dim < 0 || dim >= 64) {
      PyErr_Format(PyExc_ValueError,
                   "%s: dynamic takes pairs (index of a tensor, index of its dimension) from 0, below %zu and 64; got "
                   "%R",
                   name, kMostTensors, pair);
      return nullptr;
    }
    chooser->dynamic[static_cast<std::size_t>(tensor)] |= std::uint64_t{1} << static_cast<unsigned>(dim);
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) {
    reinterpret_cast<ChooserObject*>(self)->chooser = chooser.release();
  }
  return self;
  END_HANDLE_TH_ERRORS
}

int chooser_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  if (const Chooser* chooser = chooser_of(object)) {
    Py_VISIT(chooser->candidates.get());
    for (const PyRef& result : chooser->results) {
      Py_VISIT(result.get());
    }
  }
  return 0;
}

int chooser_clear(PyObject* object) {
  if (Chooser* chooser = chooser_of(object)) {
    const PyRef candidates = std::move(chooser->candidates);
    const std::vector<PyRef> results = std::exchange(chooser->results, {});
  }
  return 0;
}

void chooser_dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  delete std::exchange(reinterpret_cast<ChooserObject*>(object)->chooser, nullptr);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* chooser_name(PyObject* object, void*) { return PyUnicode_FromString(chooser_of(object)->op.name().c_str()); }
PyObject* chooser_configuration(PyObject* object, void*) {
  return PyUnicode_FromString(chooser_of(object)->configuration.c_str());
}

PyMethodDef chooser_methods[] = {{"choose", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(chooser_choose)),
                                  METH_FASTCALL, "choose(*tensors) -> (runner, tactic)"},
                                 {nullptr, nullptr, 0, nullptr}};

PyGetSetDef chooser_getset[] = {{"name", chooser_name, nullptr, "The operator's name.", nullptr},
                                {"configuration", chooser_configuration, nullptr, "The text that was given.", nullptr},
                                {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot chooser_slots[] = {{Py_tp_new, reinterpret_cast<void*>(chooser_new)},
                               {Py_tp_dealloc, reinterpret_cast<void*>(chooser_dealloc)},
                               {Py_tp_traverse, reinterpret_cast<void*>(chooser_traverse)},
                               {Py_tp_clear, reinterpret_cast<void*>(chooser_clear)},
                               {Py_tp_methods, chooser_methods},
                               {Py_tp_getset, chooser_getset},
                               {0, nullptr}};

PyType_Spec chooser_spec = {"dutyfree._core.RunnerChooser", sizeof(ChooserObject), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, chooser_slots};

}  // namespace

bool add_runner_chooser_type(PyObject* module) {
  tactic_keyword = PyUnicode_InternFromString("tactic");
  const PyRef type = PyRef::steal(PyType_FromSpec(&chooser_spec));
  return tactic_keyword != nullptr && type &&
         PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type.get())) == 0;
}

}  // namespace dutyfree::autotune
