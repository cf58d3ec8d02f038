# pybind11 is torch's own copy, so that its internals are the ones that libtorch_python uses, with one word added.
#
# error_already_set::what() is declared in pytypes.h and defined inline in pybind11.h. That makes it the class's key
# function, so GCC emits the vtable, and all of pybind11 that hangs on it, in every file that includes pybind11.h: more
# than half of the time that one of our files takes to compile (GCC 12, pybind11 3.0.4). Declared inline, the vtable is
# emitted where it is used.

# pybind11_headers(TORCH_INCLUDE_DIR RESULT): puts the headers into the build folder, RESULT is the include folder.
function(pybind11_headers torch_include_dir result)
  set(folder ${CMAKE_BINARY_DIR}/pybind11_headers)
  file(COPY ${torch_include_dir}/pybind11 DESTINATION ${folder} PATTERN pytypes.h EXCLUDE)
  file(READ ${torch_include_dir}/pybind11/pytypes.h text)
  string(REPLACE "\n    const char *what() const noexcept override;" "\n    inline const char *what() const noexcept override;"
                 patched "${text}")
  if(patched STREQUAL text)
    message(STATUS "pybind11's error_already_set looks different than expected: compiling takes longer")
  endif()
  # Written only when it differs, so that configuring again does not recompile everything.
  set(target ${folder}/pybind11/pytypes.h)
  if(EXISTS ${target})
    file(READ ${target} present)
  endif()
  if(NOT "${present}" STREQUAL "${patched}")
    file(WRITE ${target} "${patched}")
  endif()
  set(${result} ${folder} PARENT_SCOPE)
endfunction()
