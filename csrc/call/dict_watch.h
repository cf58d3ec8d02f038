#pragma once

#include <Python.h>

#include <cstdint>

namespace dutyfree::call {

// Tells in two instructions that a dict has not been written to. CPython up to 3.11 stamps every dict with a number
// that no other dict or earlier state of it shares (PEP 509); later versions have none, and there nothing is ever
// unchanged.
class DictWatch {
 public:
  explicit DictWatch(PyObject* dict) : dict_(dict) {}  // borrowed: whoever owns the watch owns the dict

  void remember() { version_ = version(dict_); }
  bool unchanged() const { return version_ != 0 && version_ == version(dict_); }

  static std::uint64_t version(PyObject* dict) {
#if PY_VERSION_HEX < 0x030C0000
    return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#else
    (void)dict;
    return 0;
#endif
  }

 private:
  PyObject* dict_;
  std::uint64_t version_ = 0;
};

}  // namespace dutyfree::call
