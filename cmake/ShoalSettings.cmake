# Compiler settings for every target of Shoal: language level, warnings, sanitizers.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
endif()

find_program(SHOAL_CCACHE ccache)
if(SHOAL_CCACHE)
  # Below the base directory ccache sees relative paths, so that one checkout finds what another has
  # compiled: no source may be told where its checkout lies (tests: support/golden.h). With
  # precompiled headers ccache asks for the rest: nothing here reads __DATE__, and what a
  # precompiled header defines stands in its hash.
  set(shoal_ccache env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_SLOPPINESS=pch_defines,time_macros
    ${SHOAL_CCACHE})
  foreach(language CXX CUDA)
    if(NOT CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER ${shoal_ccache})
    endif()
  endforeach()
endif()
file(RELATIVE_PATH shoal_source_from_build ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR})

# Linked privately by every library, test and program; never exported.
add_library(shoal_settings INTERFACE)
target_compile_options(shoal_settings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wshadow>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${SHOAL_WERROR}>>:-Werror>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${SHOAL_WERROR}>>:-Werror=all-warnings>
  # Reproducible binaries: an assertion names kernels/x.cc wherever that lies, compiled by ccache or not.
  $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=>
  $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${shoal_source_from_build}=>)

# Decision 19: one binary gives one result. GCC contracts a*b+c into fma where the
# target has it, so two multiversioned copies of one loop would differ; off everywhere,
# kernels ask for fma by name.
target_compile_options(shoal_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

if(SHOAL_SANITIZE STREQUAL "address")
  # GCC 12 takes moves within <regex> for uninitialized reads where it also sanitizes (its bug 105616).
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
    -Wno-maybe-uninitialized)
  add_link_options(-fsanitize=address,undefined)
elseif(SHOAL_SANITIZE STREQUAL "thread")
  # ThreadSanitizer cannot see libgomp's barriers: parallel_for runs serially there.
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_compile_definitions(SHOAL_SERIAL_PARALLEL_FOR=1)
  add_link_options(-fsanitize=thread)
elseif(SHOAL_SANITIZE STREQUAL "fuzz")
  # Clang's. Its counters also tell which branches a corpus covers. Other builds show the warnings.
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined,float-cast-overflow -fno-sanitize-recover=all
    -fno-omit-frame-pointer -fprofile-instr-generate -fcoverage-mapping -w)
  add_compile_definitions(SHOAL_SERIAL_PARALLEL_FOR=1)
  add_link_options(-fsanitize=address,undefined,float-cast-overflow -fprofile-instr-generate)
elseif(SHOAL_SANITIZE)
  message(FATAL_ERROR "SHOAL_SANITIZE is '${SHOAL_SANITIZE}'; use address, thread, fuzz or nothing")
endif()
