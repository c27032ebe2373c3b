// An all_reduce in symmetric memory, and the error after a lost rank: mpirun -n 4 collectives
#include <csignal>

#include <shoal/shoal.h>

int main(int argc, char** argv) {
  return shoal::run(argc, argv, {{"lose", "-1", "the rank that dies"}}, [](shoal::Job& job) {
    // Collectives on symmetric memory need no copies: the ranks read each other's buffers.
    shoal::Tensor tensor = shoal::Tensor::empty(
        {1 << 20}, shoal::DType::f32, job.symmetric_memory(), shoal::MemoryTag::workspace);
    auto* const numbers = tensor.data<float>();
    std::fill_n(numbers, tensor.count(), static_cast<float>(job.rank() + 1));
    job.communicator()
        .all_reduce(numbers, numbers, tensor.count(), shoal::DType::f32,
                    shoal::collectives::ReduceOp::sum)
        ->wait();
    job.print("sum over {} ranks: {}\n", job.ranks(), numbers[0]);

    if (job.rank() == job.integer("lose")) raise(SIGKILL);
    try {
      job.communicator().barrier()->wait();
      job.print("all ranks are there\n");
    } catch (const shoal::Error& error) {  // peer_lost or aborted, within seconds
      std::fprintf(stderr, "rank %d: %s\n", job.rank(), error.what());
      throw;  // ends this rank too
    }
  });
}
