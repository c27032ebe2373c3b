include(GNUInstallDirs)

# With SHOAL_UNITY, each compilation takes SIZE sources of the target. The names that sources of one target
# declare in unnamed namespaces must therefore differ.
function(shoal_batches target size)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SHOAL_UNITY} UNITY_BUILD_BATCH_SIZE ${size})
  if(SHOAL_UNITY)
    # GCC takes the sources of a batch for headers, and warns of them wrongly. Other builds show the warnings.
    target_compile_options(${target} PRIVATE -w)
  endif()
endfunction()

# shoal_json_rows(VARIABLE DIRECTORY...): sets VARIABLE to rows {"NAME", R"json(TEXT)json"}, one for each .json file
# of the directories, for a source that holds them.
function(shoal_json_rows variable)
  list(TRANSFORM ARGN APPEND /*.json)
  file(GLOB files CONFIGURE_DEPENDS ${ARGN})
  set(rows)
  foreach(file IN LISTS files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    get_filename_component(name ${file} NAME)
    string(REGEX REPLACE "\\.json$" "" name ${name})
    file(READ ${file} text)
    string(APPEND rows "    {\"${name}\", R\"json(${text})json\"},\n")
  endforeach()
  set(${variable} "${rows}" PARENT_SCOPE)
endfunction()

# shoal_library(NAME [COLD] [SOURCES ...] [DEPS ...] [PRIVATE_DEPS ...])
# A library: the folder <NAME>, the target shoal_<name with underscores>, the alias
# Shoal::<name with underscores>. Its headers are included as "shoal/<NAME>/x.h",
# and only by targets that link it: each library has an include directory of its own.
# COLD: nothing in it has to be fast (it waits for files, peers or people), so it is compiled for the wait
# that it costs.
function(shoal_library name)
  cmake_parse_arguments(ARG "COLD" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  if(NOT CMAKE_CURRENT_SOURCE_DIR STREQUAL "${PROJECT_SOURCE_DIR}/${name}")
    message(FATAL_ERROR "shoal_library(${name}) stands in another folder than ${name}")
  endif()
  string(REPLACE "/" "_" id ${name})
  set(target shoal_${id})
  set(include_root ${CMAKE_BINARY_DIR}/include/${id})
  get_filename_component(parent shoal/${name} DIRECTORY)
  file(MAKE_DIRECTORY ${include_root}/${parent})
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${name} ${include_root}/shoal/${name} SYMBOLIC)
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    shoal_batches(${target} 16)
    set(headers shoal_library_headers)
    if(ARG_COLD)
      set(headers shoal_cold_library_headers)
      target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
    endif()
    # Only with batches: GCC 12 warns differently of what it inlines from precompiled headers. And not where
    # OpenMP's option makes it reject them.
    if(SHOAL_UNITY AND NOT "OpenMP::OpenMP_CXX" IN_LIST ARG_PRIVATE_DEPS)
      if(NOT TARGET shoal_library_headers)
        shoal_common_headers(shoal_library_headers LIBRARY)
        shoal_common_headers(shoal_cold_library_headers LIBRARY OPTIONS $<$<CONFIG:Release>:-O1>)
      endif()
      target_precompile_headers(${target} REUSE_FROM ${headers})
    endif()
    set(scope PUBLIC)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:shoal_settings> ${ARG_PRIVATE_DEPS})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope}
    $<BUILD_INTERFACE:${include_root}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} ${scope} cxx_std_20)
  target_link_libraries(${target} ${scope} ${ARG_DEPS})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${id})
  add_library(Shoal::${id} ALIAS ${target})
  set_property(GLOBAL APPEND PROPERTY SHOAL_LIBRARIES ${target})
  install(TARGETS ${target} EXPORT ShoalTargets)
endfunction()

# shoal_check_libraries(DIRECTORY): an error if a target below DIRECTORY links a library that is not there,
# which CMake would pass to the linker as -lshoal_name.
function(shoal_check_libraries directory)
  get_property(targets DIRECTORY ${directory} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(libraries ${target} LINK_LIBRARIES)
    get_target_property(interface ${target} INTERFACE_LINK_LIBRARIES)
    list(APPEND libraries ${interface})
    list(REMOVE_DUPLICATES libraries)
    foreach(library IN LISTS libraries)
      if(library MATCHES "^shoal_" AND NOT TARGET ${library})
        message(SEND_ERROR "${directory}/CMakeLists.txt: ${target} links ${library}, and there is no such library")
      endif()
    endforeach()
  endforeach()
  get_property(folders DIRECTORY ${directory} PROPERTY SUBDIRECTORIES)
  foreach(folder IN LISTS folders)
    shoal_check_libraries(${folder})
  endforeach()
endfunction()

# shoal_keep_libraries(PROGRAM): under AddressSanitizer, PROGRAM unloads no library, so that
# tools/lsan.supp can name the one that leaks. For programs that start MPI or libfabric.
function(shoal_keep_libraries target)
  if(SHOAL_SANITIZE STREQUAL "address")
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/keep_libraries.cc)
    target_link_options(${target} PRIVATE -Wl,--export-dynamic-symbol=dlclose)
  endif()
endfunction()

# shoal_common_headers(NAME [LIBRARY] HEADERS... LIBRARIES ... OPTIONS ...): headers that many sources of
# programs, or of libraries, include, compiled once (up to half of a source's compilation). Sources still
# include what they use: clang-tidy reads them without (tools/lint.sh).
function(shoal_common_headers name)
  cmake_parse_arguments(ARG "LIBRARY" "" "HEADERS;LIBRARIES;OPTIONS" ${ARGN})
  # A target of the kind that reuses them, so that it is compiled with the same options.
  file(CONFIGURE OUTPUT ${name}.cc CONTENT "int main() {}\n")
  if(ARG_LIBRARY)
    add_library(${name} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  else()
    add_executable(${name} ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  endif()
  target_link_libraries(${name} PRIVATE shoal_settings fmt::fmt nlohmann_json::nlohmann_json ${ARG_LIBRARIES})
  target_compile_options(${name} PRIVATE ${ARG_OPTIONS})
  set(headers)
  foreach(header IN ITEMS ${ARG_HEADERS} fmt/format.h nlohmann/json.hpp algorithm array atomic chrono cmath
      cstring filesystem fstream functional map mutex optional random set span string thread vector)
    list(APPEND headers "$<$<COMPILE_LANGUAGE:CXX>:<${header}$<ANGLE-R>>")
  endforeach()
  target_precompile_headers(${name} PRIVATE ${headers})
endfunction()

# shoal_program(TARGET): a command-line program. Its own code reads words and prints; what has to be
# fast lies in the libraries, so it is compiled for the wait it costs.
function(shoal_program target)
  if(NOT TARGET shoal_program_headers)
    shoal_common_headers(shoal_program_headers HEADERS CLI/CLI.hpp LIBRARIES CLI11::CLI11
      OPTIONS $<$<CONFIG:Release>:-O1>)
  endif()
  target_link_libraries(${target} PRIVATE fmt::fmt CLI11::CLI11)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_precompile_headers(${target} REUSE_FROM shoal_program_headers)
  shoal_batches(${target} 16)
endfunction()

# shoal_test(NAME [WAITS] SOURCES ... [APART ...] [DEPS ...] [LABELS ...] [TIMEOUT s] [LAUNCHER program])
# One GoogleTest program a library. Multi-rank tests spawn their own threads or processes
# (tests/support), so that killing and failing ranks can be tested too. With LAUNCHER it is one
# test of ctest, not one a case, and that program, which is given this one's path, runs it: cases
# that share something dear. Status 77 means skipped.
# WAITS: it waits for programs or peers and computes little itself, so it is not optimized: a third less to compile.
# APART has the sources that no batch takes (shoal_batches): their names are also another source's.
# gtest_discover_tests() passes on one variable of ENVIRONMENT and drops the others: a second one goes
# in ENVIRONMENT_MODIFICATION.
function(shoal_test name)
  cmake_parse_arguments(ARG "WAITS" "TIMEOUT;LAUNCHER" "SOURCES;APART;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 200)
  endif()
  add_executable(${name} ${ARG_SOURCES} ${ARG_APART})
  set_source_files_properties(${ARG_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_link_libraries(${name} PRIVATE shoal_settings shoal_test_source_tree ${ARG_DEPS} fmt::fmt
    GTest::gmock GTest::gtest_main)
  # What is measured is the library; a test's own code is compiled for the wait it costs.
  if(ARG_WAITS)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O0>)
    target_precompile_headers(${name} REUSE_FROM shoal_waiting_test_headers)
  else()
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
    target_precompile_headers(${name} REUSE_FROM shoal_test_headers)
  endif()
  shoal_batches(${name} 8)  # a third of the time of 8 compilations
  if(ARG_LAUNCHER)
    add_test(NAME ${name} COMMAND ${ARG_LAUNCHER} $<TARGET_FILE:${name}>)
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77
      TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT GOMP_SPINCOUNT=10000 LABELS "${ARG_LABELS}")
  else()
    gtest_discover_tests(${name} TEST_PREFIX ${name}. DISCOVERY_MODE PRE_TEST
      PROPERTIES TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT GOMP_SPINCOUNT=10000 LABELS "${ARG_LABELS}")
  endif()
endfunction()
