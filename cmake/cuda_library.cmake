# libdutyfree_nvfp4_cuda.so: the CUDA kernels, in a library that the core loads when it first needs one. nvcc builds it
# where there is one that works; without it everything else is the same, and CUDA tensors get an error that says what is
# missing. Not CMake's own CUDA language, which stops the build where nvcc and the C++ compiler do not fit.

set(DUTYFREE_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO (where a working nvcc is found), ON or OFF")
set_property(CACHE DUTYFREE_CUDA PROPERTY STRINGS AUTO ON OFF)

set(nvcc_flags
    -std=c++20
    -O3
    # As on the host: a product is rounded before something is added to it. The same bits are wanted.
    -fmad=false
    # Machine code for Hopper and Blackwell, PTX for the rest from Ampere on.
    -gencode=arch=compute_90a,code=sm_90a
    -gencode=arch=compute_100a,code=sm_100a
    -gencode=arch=compute_80,code=compute_80
    # The runtime is linked in, so that no toolkit is needed beside it, and kept to itself: torch has one of its own.
    -cudart=static
    -Xlinker=--exclude-libs=ALL
    -shared
    -ccbin=${CMAKE_CXX_COMPILER}
    -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra)
if(DUTYFREE_WERROR)
  list(APPEND nvcc_flags -Werror=all-warnings -Xcompiler=-Werror)
endif()

# Sets DUTYFREE_CUDA_PROBLEM to what keeps a library from being built, or to nothing.
function(dutyfree_try_nvcc)
  set(DUTYFREE_CUDA_PROBLEM "" PARENT_SCOPE)
  if(NOT DUTYFREE_NVCC)
    set(DUTYFREE_CUDA_PROBLEM "no nvcc was found" PARENT_SCOPE)
    return()
  endif()
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/cuda_probe)
  set(tried "${DUTYFREE_NVCC} ${nvcc_flags}")
  if(EXISTS ${folder}/works)
    file(READ ${folder}/works works)
    if(works STREQUAL tried)
      return()
    endif()
  endif()
  file(WRITE ${folder}/probe.cu "#include <cuda_runtime_api.h>\n__global__ void probe() {}\n"
                                "int launch() { probe<<<1, 1>>>(); return cudaGetLastError(); }\n")
  execute_process(
    COMMAND ${DUTYFREE_NVCC} ${nvcc_flags} -o ${folder}/probe.so ${folder}/probe.cu
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output
    RESULT_VARIABLE failed)
  if(failed)
    set(DUTYFREE_CUDA_PROBLEM "${DUTYFREE_NVCC} (12.8 or later is needed) fails:\n${output}" PARENT_SCOPE)
  else()
    file(WRITE ${folder}/works "${tried}")
  endif()
endfunction()

# The variants for checks build the core alone.
if(DUTYFREE_CUDA AND NOT DUTYFREE_SEEDED_FAULTS AND NOT DUTYFREE_SANITIZE)
  if(DUTYFREE_NVCC AND NOT EXISTS ${DUTYFREE_NVCC})
    unset(DUTYFREE_NVCC CACHE)  # it was there once
  endif()
  find_program(
    DUTYFREE_NVCC nvcc
    HINTS ${CMAKE_CURRENT_SOURCE_DIR}/build/nvcc ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda
    PATH_SUFFIXES bin
    DOC "The CUDA compiler, 12.8 or later")
  dutyfree_try_nvcc()
  if(NOT DUTYFREE_CUDA_PROBLEM)
    message(STATUS "CUDA kernels: built by ${DUTYFREE_NVCC}")
    file(GLOB cuda_sources CONFIGURE_DEPENDS csrc/nvfp4/cuda/*.cu)
    file(GLOB cuda_headers CONFIGURE_DEPENDS csrc/nvfp4/cuda/*.h csrc/nvfp4/format.h)
    if(DUTYFREE_INPLACE)
      set(cuda_folder ${CMAKE_CURRENT_SOURCE_DIR}/src/dutyfree)
    else()
      set(cuda_folder ${CMAKE_CURRENT_BINARY_DIR})
    endif()
    set(cuda_library ${cuda_folder}/libdutyfree_nvfp4_cuda.so)
    add_custom_command(
      OUTPUT ${cuda_library}
      COMMAND ${DUTYFREE_NVCC} ${nvcc_flags} -I${CMAKE_CURRENT_SOURCE_DIR}/csrc -o ${cuda_library} ${cuda_sources}
      DEPENDS ${cuda_sources} ${cuda_headers}
      COMMENT "Building the CUDA kernels"
      VERBATIM)
    add_custom_target(dutyfree_nvfp4_cuda ALL DEPENDS ${cuda_library})
    install(PROGRAMS ${cuda_library} DESTINATION dutyfree)
  elseif(DUTYFREE_CUDA STREQUAL AUTO)
    message(STATUS "CUDA kernels: not built, ${DUTYFREE_CUDA_PROBLEM}")
  else()
    message(FATAL_ERROR "CUDA kernels: ${DUTYFREE_CUDA_PROBLEM}\nscripts/get_nvcc.sh build/nvcc python3 gets one.")
  endif()
endif()
