# find_package(dutyfree CONFIG REQUIRED): the target dutyfree::dutyfree, which a library with operators links to. It has
# the headers of dutyfree and of the torch that is installed, torch's libraries and C++11 ABI, and C++20. Libraries need
# neither dutyfree nor Python when they are loaded.
#
# torch is the one that the project's interpreter imports: Python_EXECUTABLE, Python3_EXECUTABLE, or what
# find_package(Python) finds. find_package(Torch) is not needed.

# A function, so that its variables stay its own: find_package(Torch) sets some of the same names.
function(_dutyfree_define_target)
  if(Python_EXECUTABLE)
    set(python ${Python_EXECUTABLE})
  elseif(Python3_EXECUTABLE)
    set(python ${Python3_EXECUTABLE})
  else()
    find_package(Python COMPONENTS Interpreter)
    set(python ${Python_EXECUTABLE})
  endif()
  if(NOT python)
    set(dutyfree_NOT_FOUND_MESSAGE "dutyfree needs a Python interpreter to find torch by: set Python_EXECUTABLE." PARENT_SCOPE)
    return()
  endif()
  execute_process(
    COMMAND ${python} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/query_torch.py
    # Not where a folder called torch might be.
    WORKING_DIRECTORY ${CMAKE_CURRENT_FUNCTION_LIST_DIR}
    OUTPUT_VARIABLE facts
    ERROR_VARIABLE errors
    RESULT_VARIABLE failed)
  if(failed)
    set(dutyfree_NOT_FOUND_MESSAGE "${errors}" PARENT_SCOPE)
    return()
  endif()
  cmake_language(EVAL CODE "${facts}")

  add_library(dutyfree::dutyfree INTERFACE IMPORTED)
  target_compile_features(dutyfree::dutyfree INTERFACE cxx_std_20)
  target_compile_definitions(dutyfree::dutyfree INTERFACE _GLIBCXX_USE_CXX11_ABI=${TORCH_CXX11_ABI})
  get_filename_component(include_dir ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../include ABSOLUTE)
  target_include_directories(dutyfree::dutyfree SYSTEM INTERFACE ${include_dir} ${TORCH_INCLUDE_DIRS})
  target_link_libraries(dutyfree::dutyfree INTERFACE ${TORCH_LIBRARY_DIR}/libtorch.so ${TORCH_LIBRARY_DIR}/libtorch_cpu.so
                                                     ${TORCH_LIBRARY_DIR}/libc10.so)
  set(dutyfree_FOUND TRUE PARENT_SCOPE)
  message(STATUS "dutyfree: torch ${TORCH_VERSION}, C++11 ABI ${TORCH_CXX11_ABI}, of ${python}")
endfunction()

if(NOT TARGET dutyfree::dutyfree)
  set(dutyfree_FOUND FALSE)
  _dutyfree_define_target()
endif()
