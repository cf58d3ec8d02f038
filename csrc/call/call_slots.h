#pragma once

#include <Python.h>

namespace dutyfree::call {

// The Python frames of OpOverload.__call__ and OpOverloadPacket.__call__ cost 0.1 µs a call. These functions put a C
// function into the two types' tp_call slot that does what the frames do, `self._op(*args, **kwargs)`, and take it out
// again. The types' `__call__` attributes stay as they are; assigning to one of them makes CPython fill the slot anew,
// so a later patch wins. Guarded by the GIL.
//
// install_call_slots(overload_type, packet_type): raises RuntimeError when the types do more than that in `__call__`.
PyObject* install_call_slots(PyObject* module, PyObject* args);
PyObject* remove_call_slots(PyObject* module, PyObject* args);
// The same for the frame of CustomOpDef.__call__, `return self._opoverload(*args, **kwargs)`.
PyObject* install_definition_slot(PyObject* module, PyObject* type);
PyObject* remove_definition_slot(PyObject* module, PyObject* args);

// ask_at_first_calls(ask or None): with every OpOverload or OpOverloadPacket that is called for the first time without
// our callable in front of it, `ask` is called once, and may put one there.
PyObject* ask_at_first_calls(PyObject* module, PyObject* ask);

// `_core.CallTarget`: a base without behaviour for Python classes whose instances stand for an operator. It holds the
// OpOverload that a call goes to. enable_vectorcall(cls) makes calls of such a class's instances skip the Python frame
// of its `__call__`, which must be `return self._opoverload(*args, **kwargs)`.
bool add_call_target_type(PyObject* module);
PyObject* enable_vectorcall(PyObject* module, PyObject* cls);

}  // namespace dutyfree::call
