# find_package(Shoal): Shoal::Shoal, which is every library, and the public headers, which are all that is
# installed: include/shoal and what it includes. At most 30.
set(public_headers
  collectives/communicator.h collectives/transport/reduction.h collectives/work.h
  kernels/activation.h
  nn/autograd/context.h nn/autograd/function.h nn/autograd/parameter.h
  nn/layers/chain.h nn/layers/functional.h nn/layers/kinds.h nn/layers/layers.h nn/layers/module.h
  nn/layers/sequential.h
  nn/optim/loss_scaler_options.h
  parallel/mesh/placement.h parallel/pipeline/schedule_kind.h parallel/plan/parallel_plan.h
  parallel/shard/sharding_options.h
  runtime/base/error.h runtime/device/device.h runtime/memory/memory_resource.h
  runtime/tensor/dtype.h runtime/tensor/shape.h runtime/tensor/tensor.h
  train/data/batch.h train/data/dataset.h)
file(GLOB face RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS include/shoal/*.h)
list(LENGTH public_headers headers)
list(LENGTH face faces)
math(EXPR headers "${headers} + ${faces}")
if(headers GREATER 30)
  message(FATAL_ERROR "${headers} public headers; at most 30 are installed")
endif()
foreach(header IN LISTS public_headers)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shoal/${folder})
endforeach()
install(FILES ${face} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shoal)

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
