# Pages, manual pages and completions; and the packages of `./dev package`: a .deb of the release build, which
# depends on the packages of the libraries it loads, and a tarball of the preset tarball, which contains them.
set(libraries_of_every_linux
  "/(ld-linux[^/]*|lib(c|m|dl|rt|util|pthread|resolv|gcc_s|stdc\\+\\+))\\.so[.0-9]*$")
if(NOT TARGET shoal OR SKBUILD)
  return()
endif()
set(pages ${CMAKE_INSTALL_DATADIR}/doc/shoal)
install(FILES README.md CHANGELOG.md DESTINATION ${pages})
install(FILES LICENSE DESTINATION ${pages} RENAME copyright)  # the name that Debian asks for
install(DIRECTORY docs examples DESTINATION ${pages} OPTIONAL)  # docker's builds have no docs/

# Manual pages and completions are made from what the programs print as help.
find_program(SHOAL_PYTHON3 python3)  # find_package(Python3) here would mislead pybind11
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/manual)
install(CODE "
  execute_process(COMMAND \"${SHOAL_PYTHON3}\" -B \"${CMAKE_SOURCE_DIR}/tools/manual.py\"
      \"$<TARGET_FILE_DIR:shoal>\" \"${CMAKE_BINARY_DIR}/manual\" \"\${CMAKE_INSTALL_PREFIX}\"
    RESULT_VARIABLE status ERROR_VARIABLE why)
  if(NOT status EQUAL 0)
    message(WARNING \"manual pages and completions are left out: \${status} \${why}\")
  endif()")
install(DIRECTORY ${CMAKE_BINARY_DIR}/manual/ DESTINATION ${CMAKE_INSTALL_DATADIR})

if(SHOAL_BUNDLE)
  set(programs shoal shoal-collective-perf shoal-collective-tune shoal-sagemaker-train)
  set_target_properties(${programs} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/shoal:$ORIGIN/../../lib/shoal")
  foreach(program IN LISTS programs)
    # DT_RPATH instead of DT_RUNPATH: the libraries find each other through it, too.
    target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
  endforeach()
  if(TARGET shoal_libfabric)
    install(IMPORTED_RUNTIME_ARTIFACTS shoal_libfabric RUNTIME_DEPENDENCY_SET libraries_of_programs
      LIBRARY DESTINATION lib/shoal)
  endif()
  install(RUNTIME_DEPENDENCY_SET libraries_of_programs
    POST_EXCLUDE_REGEXES "${libraries_of_every_linux}" LIBRARY DESTINATION lib/shoal)
endif()

# What `./dev package` builds.
get_property(archives GLOBAL PROPERTY SHOAL_LIBRARIES)
add_custom_target(installed DEPENDS programs)
foreach(archive IN LISTS archives)
  add_dependencies(installed ${archive})
endforeach()

# C++ programs that link Shoal need the packages that compiling Shoal needs.
file(STRINGS tools/packages.txt lines REGEX "^[a-z0-9.-]+-dev +#")
list(FILTER lines EXCLUDE REGEX "# (tests|benchmarks)")
list(TRANSFORM lines REPLACE " .*" "" OUTPUT_VARIABLE suggested)
list(JOIN suggested ", " CPACK_DEBIAN_PACKAGE_SUGGESTS)
set(CPACK_PACKAGE_NAME shoal)
set(CPACK_PACKAGE_CONTACT "The Shoal authors <shoal@example.com>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains transformer models, on one rank or on many")
set(CPACK_PACKAGE_FILE_NAME shoal-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
if(SHOAL_HAVE_LIBFABRIC)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS libfabric1)  # loaded, not linked
endif()
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS openmpi-bin)  # mpirun
include(CPack)
