# Installs into a scratch prefix, builds examples/train_gpt2 against it as an external project, and
# runs it for a few steps.
set(prefix ${BUILD}/install-test/prefix)
set(work ${BUILD}/install-test/train_gpt2)
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed (${status}): ${ARGN}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${BUILD}/install-test)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${SOURCE}/examples/train_gpt2 -B ${work} -G ${GENERATOR}
    -DCMAKE_BUILD_TYPE=${TYPE} -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_FLAGS=${CXX_FLAGS})
run(${CMAKE_COMMAND} --build ${work})
run(${work}/train_gpt2 --steps 3)
if(NOT output MATCHES "loss")
  message(FATAL_ERROR "the example printed no loss:\n${output}")
endif()
message(STATUS "${output}")
