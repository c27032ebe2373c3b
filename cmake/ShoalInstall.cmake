# find_package(Shoal): every room, and Shoal::Shoal, which is all of them.
include(CMakePackageConfigHelpers)
get_property(libraries GLOBAL PROPERTY SHOAL_LIBRARIES)
add_library(shoal_all INTERFACE)
target_link_libraries(shoal_all INTERFACE ${libraries})
set_target_properties(shoal_all PROPERTIES EXPORT_NAME Shoal)
install(TARGETS shoal_all EXPORT ShoalTargets)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Shoal)
configure_package_config_file(cmake/ShoalConfig.cmake.in ${CMAKE_BINARY_DIR}/ShoalConfig.cmake
  INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/ShoalConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/ShoalConfig.cmake ${CMAKE_BINARY_DIR}/ShoalConfigVersion.cmake
  cmake/FindOneDNN.cmake cmake/FindNCCL.cmake cmake/FindcuDNN.cmake DESTINATION ${config_dir})
install(EXPORT ShoalTargets NAMESPACE Shoal:: DESTINATION ${config_dir})
