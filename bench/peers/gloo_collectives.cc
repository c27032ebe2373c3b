// Times one collective of gloo over TCP, as a peer of shoal-collective-perf. Rank 0 prints one JSON
// line per size.
//
//   gloo_collectives STORE_DIRECTORY OPERATION ITERATIONS BYTES...
//
// Rank and size come from OMPI_COMM_WORLD_RANK/SIZE or RANK/WORLD_SIZE. STORE_DIRECTORY: new for
// each run, visible to all ranks. GLOO_INTERFACE: network interface (default lo). OPERATION, in f32
// with sum: all_reduce (PyTorch's ring), all_reduce:bcube, all_reduce:halving_doubling,
// all_reduce:ring_chunked, reduce_scatter (halving-doubling, gloo's only algorithm), all_gather,
// broadcast or all_to_all. ITERATIONS 0: as many as take about 0.2 s.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

namespace {

using ContextPtr = std::shared_ptr<gloo::rendezvous::Context>;
using Seconds = std::chrono::duration<double>;

int number_from(const char* first, const char* second) {
  for (const char* name : {first, second})
    if (const char* text = std::getenv(name)) return std::atoi(text);
  std::cerr << "gloo_collectives: neither " << first << " nor " << second << " is set\n";
  std::exit(2);
}

template <typename T>
void all_reduce(const ContextPtr& context, T* data, std::size_t count,
                gloo::AllreduceOptions::Algorithm algorithm) {
  gloo::AllreduceOptions options(context);
  options.setOutput(data, count);
  options.setAlgorithm(algorithm);
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<T>));
  gloo::allreduce(options);
}

std::function<void()> operation(const std::string& name, const ContextPtr& context,
                                std::vector<float>& send, std::vector<float>& recv) {
  const std::size_t count = recv.size();
  const auto size = static_cast<std::size_t>(context->size);
  const std::vector<float*> pointers{recv.data()};
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  if (name == "all_reduce" || name == "all_reduce:bcube") {
    const auto algorithm = name == "all_reduce" ? Algorithm::RING : Algorithm::BCUBE;
    return [=, &recv] { all_reduce(context, recv.data(), count, algorithm); };
  }
  const auto object = [](const auto& made) { return [made] { made->run(); }; };
  const auto n = static_cast<int>(count);
  if (name == "all_reduce:halving_doubling")
    return object(std::make_shared<gloo::AllreduceHalvingDoubling<float>>(context, pointers, n));
  if (name == "all_reduce:ring_chunked")
    return object(std::make_shared<gloo::AllreduceRingChunked<float>>(context, pointers, n));
  if (name == "reduce_scatter") {
    std::vector<int> parts(size, static_cast<int>(count / size));
    return object(
        std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(context, pointers, n, parts));
  }
  if (name == "all_gather")
    return [=, &send, &recv] {
      gloo::AllgatherOptions options(context);
      options.setInput(send.data(), count / size);
      options.setOutput(recv.data(), count);
      gloo::allgather(options);
    };
  if (name == "broadcast")
    return [=, &recv] {
      gloo::BroadcastOptions options(context);
      options.setOutput(recv.data(), count);
      options.setRoot(0);
      gloo::broadcast(options);
    };
  if (name == "all_to_all")
    return [=, &send, &recv] {
      gloo::AlltoallOptions options(context);
      options.setInput(send.data(), count);
      options.setOutput(recv.data(), count);
      gloo::alltoall(options);
    };
  std::cerr << "gloo_collectives: unknown operation '" << name << "'\n";
  std::exit(2);
}

// Seconds per call: the mean over `times` calls and all ranks, as nccl-tests' default.
double timed(const ContextPtr& context, const std::function<void()>& call, long times) {
  gloo::BarrierOptions barrier(context);
  gloo::barrier(barrier);
  const auto start = std::chrono::steady_clock::now();
  for (long i = 0; i < times; ++i) call();
  double seconds =
      Seconds(std::chrono::steady_clock::now() - start).count() / static_cast<double>(times);
  all_reduce(context, &seconds, 1, gloo::AllreduceOptions::Algorithm::RING);
  return seconds / context->size;
}

// The value that rank `from` sends to rank `to`.
float given(const std::string& name, std::size_t from, std::size_t to, std::size_t size) {
  if (name == "broadcast") return from == 0 ? 7 : 0;
  return static_cast<float>(name == "all_to_all" ? from * size + to : from + 1);
}

// Number of wrong elements over all ranks after one call with known inputs.
double check(const ContextPtr& context, const std::string& name, const std::function<void()>& call,
             std::vector<float>& send, std::vector<float>& recv) {
  const auto size = static_cast<std::size_t>(context->size);
  const auto rank = static_cast<std::size_t>(context->rank);
  const std::size_t part = recv.size() / size;
  const bool scatters = name == "reduce_scatter", reduces = name.starts_with("all_reduce");
  const bool in_place = reduces || scatters || name == "broadcast";
  if (part == 0 && !in_place) return 0;
  const auto block = [&](std::size_t j) { return part > 0 ? j / part % size : 0; };
  std::vector<float>& input = in_place ? recv : send;
  for (std::size_t j = 0; j < input.size(); ++j) input[j] = given(name, rank, block(j), size);
  call();
  double wrong = 0;
  for (std::size_t j = 0; j < (in_place && !scatters ? recv.size()
                               : scatters            ? part
                                                     : part * size);
       ++j) {
    const auto sum = static_cast<float>(size * (size + 1)) / 2;
    const float want = reduces || scatters   ? sum
                       : name == "broadcast" ? 7
                                             : given(name, block(j), rank, size);
    wrong += recv[j] == want ? 0 : 1;
  }
  all_reduce(context, &wrong, 1, gloo::AllreduceOptions::Algorithm::RING);
  std::fill(send.begin(), send.end(), 0.0F);  // repeated sums would overflow
  std::fill(recv.begin(), recv.end(), 0.0F);
  return wrong;
}

int run(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "usage: gloo_collectives STORE_DIRECTORY OPERATION ITERATIONS BYTES...\n";
    return 2;
  }
  const int rank = number_from("OMPI_COMM_WORLD_RANK", "RANK");
  const int size = number_from("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE");
  gloo::transport::tcp::attr attributes;
  const char* interface = std::getenv("GLOO_INTERFACE");
  attributes.iface = interface ? interface : "lo";
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  const auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  gloo::rendezvous::FileStore store(argv[1]);
  context->connectFullMesh(store, device);

  const std::string name = argv[2];
  for (int i = 4; i < argc; ++i) {
    const long bytes = std::atol(argv[i]);
    std::vector<float> send(static_cast<std::size_t>(bytes / 4)), recv(send.size());
    const auto call = operation(name, context, send, recv);
    const double wrong = check(context, name, call, send, recv);
    long times = std::atol(argv[3]);
    // As in shoal-collective-perf: at least 50 ms, so that each rank gets a core.
    const long warm_up = bytes < (1 << 20) ? 20 : 2;
    double once = timed(context, call, warm_up), warm = 0;
    while ((warm += once * static_cast<double>(warm_up)) < 0.05)
      once = timed(context, call, warm_up);
    if (times <= 0) times = std::clamp(static_cast<long>(0.2 / once), 3L, 20000L);
    const double seconds = timed(context, call, times);
    if (rank == 0)
      std::cout << "{\"operation\": \"" << name << "\", \"bytes\": " << bytes
                << ", \"ranks\": " << size << ", \"seconds\": " << seconds
                << ", \"wrong\": " << wrong << "}" << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& problem) {
    std::cerr << "gloo_collectives: " << problem.what() << "\n";
    return 1;
  }
}
