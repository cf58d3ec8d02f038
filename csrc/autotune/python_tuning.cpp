#include "autotune/python_tuning.h"

#include <torch/csrc/Exceptions.h>

#include "autotune/host.h"
#include "autotune/python_host.h"
#include "autotune/tuned_operator.h"
#include "py_ref.h"

namespace dutyfree::autotune {
namespace {

PyRef text_or_none(const std::string& text) {
  return text.empty()
             ? PyRef::borrow(Py_None)
             : PyRef::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

PyRef dict_of(const LeftOut& pairs) {
  PyRef dict = PyRef::steal(PyDict_New());
  for (const auto& [name, value] : pairs) {
    // Other people's messages: in whatever encoding.
    const PyRef text =
        PyRef::steal(PyUnicode_DecodeUTF8(value.data(), static_cast<Py_ssize_t>(value.size()), "replace"));
    if (!dict || !text || PyDict_SetItemString(dict.get(), name.c_str(), text.get()) != 0) {
      return {};
    }
  }
  return dict;
}

PyRef list_of(const std::vector<std::string>& texts) {
  PyRef list = PyRef::steal(PyList_New(0));
  for (const std::string& text : texts) {
    const PyRef made = PyRef::steal(PyUnicode_FromString(text.c_str()));
    if (!list || !made || PyList_Append(list.get(), made.get()) != 0) {
      return {};
    }
  }
  return list;
}

// A list of what `row` makes of each of `list`, for every operator.
template <typename Rows, typename Row>
PyRef collect(Rows rows, Row row) {
  PyRef list = PyRef::steal(PyList_New(0));
  for (const TunedOperator* op : tuned_operators()) {
    for (const auto& each : rows(*op)) {
      const PyRef made = row(*op, each);
      if (!list || !made || PyList_Append(list.get(), made.get()) != 0) {
        return {};
      }
    }
  }
  return list;
}

// (operator, configuration, dims, tactic, microseconds, {tactic left out: reason})
PyRef row_of(const std::string& name, const Choice& choice) {
  const PyRef dims = python_dims(choice.dims);
  const PyRef left_out = dict_of(choice.left_out);
  return PyRef::steal(!dims || !left_out
                          ? nullptr
                          : Py_BuildValue("ssOsdO", name.c_str(), choice.configuration.c_str(), dims.get(),
                                          choice.tactic.c_str(), choice.microseconds, left_out.get()));
}

// (operator, configuration, dims, fallback or None, a file's unknown tactic or None)
PyRef row_of(const std::string& name, const Miss& miss) {
  const PyRef dims = python_dims(miss.dims);
  const PyRef fallback = text_or_none(miss.fallback);
  const PyRef unknown = text_or_none(miss.unknown);
  return PyRef::steal(!dims || !fallback || !unknown ? nullptr
                                                     : Py_BuildValue("ssOOO", name.c_str(), miss.configuration.c_str(),
                                                                     dims.get(), fallback.get(), unknown.get()));
}

// begin_tuning(warmup, repeats, cold, progress) -> the context's number
PyObject* python_begin_tuning(PyObject*, PyObject* args) {
  int cold = 0;
  Settings wanted;
  PyObject* progress = nullptr;
  if (!PyArg_ParseTuple(args, "iipO", &wanted.warmup, &wanted.repeats, &cold, &progress)) {
    return nullptr;
  }
  wanted.cold = cold != 0;
  HANDLE_TH_ERRORS
  // Whoever tunes says which file counts.
  host::skip_default_cache();
  const std::uint64_t context = begin_tuning(wanted);
  add_progress(context, progress == Py_None ? nullptr : progress);
  return PyLong_FromUnsignedLongLong(context);
  END_HANDLE_TH_ERRORS
}

// end_tuning(number) -> its progress or None
PyObject* python_end_tuning(PyObject*, PyObject* number) {
  const std::uint64_t context = PyLong_AsUnsignedLongLong(number);
  if (PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  end_tuning(context);
  PyRef progress = remove_progress(context);
  return progress ? progress.release() : PyRef::borrow(Py_None).release();
}

PyObject* python_is_tuning(PyObject*, PyObject*) { return PyBool_FromLong(tuning() ? 1 : 0); }

PyObject* python_measured_choices(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(measured_choices()); }

// tuning_choices() -> [row_of(...)], those in use
PyObject* python_choices(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  return collect([](const TunedOperator& op) { return op.choices(); },
                 [](const TunedOperator& op, const Choice& choice) { return row_of(op.name(), choice); })
      .release();
  END_HANDLE_TH_ERRORS
}

// waiting_choices() -> [row_of(...)], those whose operator or tactic does not exist yet
PyObject* python_waiting(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  PyRef list = collect([](const TunedOperator& op) { return op.waiting(); },
                       [](const TunedOperator& op, const Choice& choice) { return row_of(op.name(), choice); });
  for (const auto& [name, choice] : kept_choices()) {
    const PyRef row = !list ? PyRef() : row_of(name, choice);
    if (!row || PyList_Append(list.get(), row.get()) != 0) {
      return nullptr;
    }
  }
  return list.release();
  END_HANDLE_TH_ERRORS
}

// tuning_misses() -> [row_of(...)]
PyObject* python_misses(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  PyRef list = collect([](const TunedOperator& op) { return op.misses(); },
                       [](const TunedOperator& op, const Miss& miss) { return row_of(op.name(), miss); });
  // An operator that was not made yet lacks every tactic.
  for (const auto& [name, choice] : kept_choices()) {
    const PyRef row = !list ? PyRef() : row_of(name, Miss{choice.configuration, choice.dims, "", choice.tactic});
    if (!row || PyList_Append(list.get(), row.get()) != 0) {
      return nullptr;
    }
  }
  return list.release();
  END_HANDLE_TH_ERRORS
}

// listed_tactics() -> [(operator, configuration, dims, [tactic])]
PyObject* python_listed(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  return collect([](const TunedOperator& op) { return op.listed(); },
                 [](const TunedOperator& op, const Listed& listed) {
                   const PyRef dims = python_dims(listed.dims);
                   const PyRef tactics = list_of(listed.tactics);
                   return PyRef::steal(!dims || !tactics
                                           ? nullptr
                                           : Py_BuildValue("ssOO", op.name().c_str(), listed.configuration.c_str(),
                                                           dims.get(), tactics.get()));
                 })
      .release();
  END_HANDLE_TH_ERRORS
}

// restore_choice(operator, configuration, dims, tactic, microseconds, {tactic left out: reason})
PyObject* python_restore(PyObject*, PyObject* args) {
  const char *name = nullptr, *configuration = nullptr, *tactic = nullptr;
  PyObject *sizes = nullptr, *left_out = nullptr;
  double microseconds = 0;
  if (!PyArg_ParseTuple(args, "ssO!sd|O!", &name, &configuration, &PyTuple_Type, &sizes, &tactic, &microseconds,
                        &PyDict_Type, &left_out)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  Choice choice{configuration, {}, tactic, microseconds, {}};
  for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(sizes); ++index) {
    choice.dims.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, index)));
    if (choice.dims.back() == -1 && PyErr_Occurred() != nullptr) {
      return nullptr;
    }
  }
  PyObject *left = nullptr, *reason = nullptr;
  for (Py_ssize_t next = 0; left_out != nullptr && PyDict_Next(left_out, &next, &left, &reason) != 0;) {
    const char* left_text = PyUnicode_AsUTF8(left);
    const char* reason_text = left_text == nullptr ? nullptr : PyUnicode_AsUTF8(reason);
    if (reason_text == nullptr) {
      return nullptr;
    }
    choice.left_out.emplace_back(left_text, reason_text);
  }
  restore_choice(name, choice);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* python_forget(PyObject*, PyObject*) {
  forget_choices();
  Py_RETURN_NONE;
}

PyObject* python_load_default_cache(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  host::load_default_cache();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* python_skip_default_cache(PyObject*, PyObject*) {
  host::skip_default_cache();
  Py_RETURN_NONE;
}

PyMethodDef tuning_functions[] = {
    {"begin_tuning", python_begin_tuning, METH_VARARGS, "Begin a context in which calls measure; returns its number."},
    {"end_tuning", python_end_tuning, METH_O, "End the context of a number; returns its progress."},
    {"is_tuning", python_is_tuning, METH_NOARGS, "Whether calls without a choice measure now."},
    {"measured_choices", python_measured_choices, METH_NOARGS, "Choices measured since the process began."},
    {"tuning_choices", python_choices, METH_NOARGS, "Every operator's choices."},
    {"waiting_choices", python_waiting, METH_NOARGS, "The choices that wait for their operator or tactic."},
    {"tuning_misses", python_misses, METH_NOARGS, "Every key that calls found no choice for."},
    {"listed_tactics", python_listed, METH_NOARGS, "What calls without a choice had to choose from."},
    {"restore_choice", python_restore, METH_VARARGS, "Take a choice for one that was measured here."},
    {"forget_choices", python_forget, METH_NOARGS, "Forget every operator's choices."},
    {"load_default_cache", python_load_default_cache, METH_NOARGS, "Read the default cache, unless that was decided."},
    {"skip_default_cache", python_skip_default_cache, METH_NOARGS, "Never read the default cache by itself."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_tuning_functions(PyObject* module) {
  host::watch_forks();
  return PyModule_AddFunctions(module, tuning_functions) == 0;
}

}  // namespace dutyfree::autotune
