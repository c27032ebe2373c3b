# Installs into a scratch prefix, builds the examples against it as external projects, and runs them
# for a few steps.
set(prefix ${BUILD}/install-test/prefix)
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed (${status}): ${ARGN}\n${output}")
  endif()
  message(STATUS "${output}")
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${BUILD}/install-test)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
foreach(example IN ITEMS train_gpt2 train_parallel)
  run(${CMAKE_COMMAND} -S ${SOURCE}/examples/${example} -B ${BUILD}/install-test/${example}
      -G ${GENERATOR} -DCMAKE_BUILD_TYPE=${TYPE} -DCMAKE_PREFIX_PATH=${prefix}
      -DCMAKE_CXX_FLAGS=${CXX_FLAGS})
  run(${CMAKE_COMMAND} --build ${BUILD}/install-test/${example})
endforeach()

run(${BUILD}/install-test/train_gpt2/train_gpt2 --steps 3)
if(NOT output MATCHES "loss")
  message(FATAL_ERROR "the example printed no loss:\n${output}")
endif()

# Saved on one rank, continued on four: the losses are those of one rank that goes on.
set(parallel ${BUILD}/install-test/train_parallel/train_parallel)
run(${parallel} --steps 3 --save ${BUILD}/install-test/parts)
run(${parallel} --steps 1 --resume ${BUILD}/install-test/parts)
string(REGEX MATCH "step   3  loss [0-9]+\\.[0-9][0-9][0-9]" one "${output}")
if(one STREQUAL "")
  message(FATAL_ERROR "no fourth step was printed")
endif()
find_program(mpirun mpirun)
if(mpirun AND MPI)
  set(ENV{OMPI_ALLOW_RUN_AS_ROOT} 1)
  set(ENV{OMPI_ALLOW_RUN_AS_ROOT_CONFIRM} 1)
  run(${mpirun} -n 4 --oversubscribe ${parallel} --pipeline 2 --tensor 2 --steps 1
      --resume ${BUILD}/install-test/parts)
  if(NOT output MATCHES "${one}")
    message(FATAL_ERROR "one rank printed '${one}', four did not")
  endif()
endif()
