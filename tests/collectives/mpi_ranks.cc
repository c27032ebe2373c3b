// A rank under mpirun: runs the checks that its first argument names with the backend that its
// second one names. Exit status 0: all right. tests/collectives/mpirun_test.cc starts it.
#include <csignal>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "predictable.h"

#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

void expect(bool condition, std::string_view what) {
  if (!condition) throw Error(ErrorCode::internal, std::string(what));
}

void check_results(Communicator& communicator) {
  const auto wrong = test::check_everything(communicator, {0, 1, 3, 129, 2055});
  if (!wrong.empty()) throw Error(ErrorCode::internal, wrong.front());
  const test::Case large{Operation::all_reduce, DType::f32, ReduceOp::sum, (1 << 20) + 3, true, 4,
                         test::Memory::plain,   0};
  expect(test::wrong_in(communicator, large) == 0, "large all_reduce");
}

// Sums of random numbers: the bytes of rank 0's result are everybody's.
void check_bits(Communicator& communicator) {
  for (const std::int64_t count : {1000, 300001}) {
    std::mt19937 random(static_cast<unsigned>(communicator.rank()));
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = normal(random);
    communicator.all_reduce(values.data(), values.data(), count, DType::f32, ReduceOp::sum)->wait();
    std::vector<float> first = values;
    communicator.broadcast(first.data(), count, DType::f32, 0)->wait();
    expect(std::memcmp(first.data(), values.data(), values.size() * 4) == 0, "ranks differ");
  }
}

void check_overlap(Communicator& communicator) {
  std::vector<float> a(1 << 18, 1.0f), b(1 << 10, 1.0f);
  auto first = communicator.all_reduce(a.data(), a.data(), 1 << 18, DType::f32, ReduceOp::sum);
  auto second = communicator.all_reduce(b.data(), b.data(), 1 << 10, DType::f32, ReduceOp::sum);
  const auto start = Clock::now();
  while (communicator.statistics().by_progress_thread < 2 && seconds_since(start) < 10)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  second->wait();
  first->wait();
  expect(a.back() == static_cast<float>(communicator.size()), "overlapped all_reduce");
}

void check_groups(Communicator& communicator) {
  const int rank = communicator.rank(), size = communicator.size();
  const auto part = communicator.split(rank % 2, -rank);
  expect(part->size() == (size + 1 - rank % 2) / 2, "size of a part");
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(part->size()));
  const std::int64_t own = rank;
  part->begin_group();
  part->all_gather(&own, ranks.data(), 1, DType::i64);
  part->barrier();
  part->end_group()->wait();
  for (std::size_t i = 1; i < ranks.size(); ++i)
    expect(ranks[i] == ranks[i - 1] - 2, "order of a part");
  expect(communicator.split(-1, 0) == nullptr, "a part of nobody");

  // Received in another order than sent, while collectives run.
  std::vector<std::int32_t> first(50000, rank), second(3, rank), got(50000, -1), more(3, -1);
  const int to = (rank + 1) % size, from = (rank + size - 1) % size;
  auto a = communicator.send(first.data(), 50000, DType::i32, to);
  auto b = communicator.send(second.data(), 3, DType::i32, to);
  communicator.barrier()->wait();
  auto c = communicator.recv(got.data(), 50000, DType::i32, from);
  auto d = communicator.recv(more.data(), 3, DType::i32, from);
  for (Work* work : {d.get(), c.get(), b.get(), a.get()}) work->wait();
  expect(got.back() == from && more.back() == from, "messages");
}

// What MPI cannot count is refused on every rank alike, though only the root has the long buffer;
// nobody is left waiting. The pointers are never followed.
void check_refused(Communicator& communicator) {
  constexpr std::int64_t kCount = 1'500'000'000;
  std::vector<float> recv(200);  // before what is sent, which would overlap it otherwise
  float* const send = recv.data() + 100;
  for (const bool gathers : {true, false}) {
    std::string refused;
    try {
      if (gathers)
        communicator.gather(send, send, kCount, DType::f32, 0);
      else
        communicator.scatter(send, send, kCount, DType::f32, 0);
    } catch (const Error& error) {
      refused = error.what();
    }
    expect(refused.find("needs a buffer of 3000000000 elements") != std::string::npos,
           "gather or scatter: " + refused);
  }
  communicator.all_reduce(send, recv.data(), 100, DType::f32, ReduceOp::sum)->wait();
  // Of an all_to_all_v the others know nothing but what the cards say.
  const std::vector<std::int64_t> long_counts{1, 3'000'000'000}, counts{1, 1};
  const bool longer = communicator.rank() == 1;
  communicator.all_to_all_v(send, longer ? long_counts : counts, recv.data(), counts, DType::u8)
      ->wait();
}

// Says what it failed with, then waits until all ranks have: mpirun ends the others with the first
// that ends before it has ended MPI.
template <typename Body>
void all_say(const World& world, Store& store, const std::string& what, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: rank %d failed: %s\n", what.c_str(), world.rank, error.what());
  }
  const auto key = [&](int rank) { return fmt::format("test/{}/{}", what, rank); };
  store.set(key(world.rank), "");
  for (int rank = 0; rank < world.size; ++rank) store.get(key(rank), Deadline::in_seconds(60));
}

// Ranks 2 and 1 of the job, in this order, are a part whose own numbers for them are 0 and 1.
void check_names_in_a_part(const World& world, Store& store, Communicator& communicator) {
  std::vector<float> values(100, 1.0f);
  const bool longer = world.rank == 1;
  const auto in_a_part = [&](const std::string& what, auto&& body) {
    const auto part = communicator.split(world.rank == 0 ? -1 : 0, -world.rank);
    all_say(world, store, what, [&] {
      if (part) body(*part);
    });
  };
  in_a_part("mismatch", [&](Communicator& part) {
    part.all_reduce(values.data(), values.data(), longer ? 99 : 100, DType::f32, ReduceOp::sum)
        ->wait();
  });
  in_a_part("root", [&](Communicator& part) {
    part.broadcast(values.data(), longer ? 99 : 100, DType::f32, 0)->wait();
  });
  in_a_part("pair", [&](Communicator& part) {
    const std::vector<std::int64_t> two{2, 2}, other{3, 2};
    std::vector<float> recv(4);
    part.all_to_all_v(values.data(), longer ? other : two, recv.data(), two, DType::f32)->wait();
  });
  in_a_part("message", [&](Communicator& part) {
    if (world.rank == 2) part.send(values.data(), 5, DType::f32, 1)->wait();
    if (world.rank == 1) part.recv(values.data(), 4, DType::f32, 0)->wait();
  });
  in_a_part("silent", [&](Communicator& part) {
    if (world.rank == 2)
      part.recv(values.data(), 4, DType::f32, 1)->wait(Deadline::in_seconds(0.5));
  });
  in_a_part("missing", [&](Communicator& part) {
    if (world.rank == 2) part.barrier()->wait(Deadline::in_seconds(0.5));
  });
  in_a_part("abort", [&](Communicator& part) {
    if (world.rank == 1) part.abort("enough");
    if (world.rank == 2) part.recv(values.data(), 4, DType::f32, 1)->wait();
  });
}

int run(const std::string& what, const std::string& backend) {
  World world = discover_world();
  const auto store = make_store(world, Deadline::in_seconds(30));
  CommunicatorOptions options;
  options.backend = backend;
  options.deadline_seconds = what == "stall" || what == "silent" ? 1 : 60;
  const auto communicator = make_communicator(world, *store, options);
  std::vector<float> values(100, 1.0f);
  const auto sum = [&](std::int64_t count) {
    communicator->all_reduce(values.data(), values.data(), count, DType::f32, ReduceOp::sum)
        ->wait();
  };
  if (what == "results") {
    check_results(*communicator);
    check_bits(*communicator);
    check_overlap(*communicator);
    check_groups(*communicator);
  }
  if (what == "pair") {
    const std::vector<std::int64_t> two{2, 2}, other{3, 2};
    std::vector<float> recv(4);
    communicator
        ->all_to_all_v(values.data(), world.rank == 1 ? other : two, recv.data(), two, DType::f32)
        ->wait();
  }
  if (what == "message") {
    if (world.rank == 0) communicator->send(values.data(), 5, DType::f32, 1)->wait();
    if (world.rank == 1) communicator->recv(values.data(), 4, DType::f32, 0)->wait();
    communicator->barrier()->wait();
  }
  if (what == "dropped") {
    auto part = communicator->split(0, world.rank);
    if (world.rank == 0) {
      part->recv(values.data(), 4, DType::f32, 1).reset();
      part.reset();
    }
    communicator->barrier()->wait();
    if (world.rank == 1) part->send(values.data(), 4, DType::f32, 0).reset();
    for (int i = 0; i < 100; ++i) sum(100);
    std::fprintf(stderr, "rank %d lives on\n", world.rank);
  }
  if (what == "counts") {
    const std::vector<std::int64_t> counts{1'000'000'000, 0, 0};
    communicator->reduce_scatter_v(values.data(), values.data(), counts, DType::f32, ReduceOp::sum);
  }
  if (what == "refused") all_say(world, *store, what, [&] { check_refused(*communicator); });
  if (what == "part") check_names_in_a_part(world, *store, *communicator);
  if (what == "silent" && world.rank == 0)
    communicator->recv(values.data(), 4, DType::f32, 1)->wait();
  if (what == "mismatch") sum(world.rank == 1 ? 99 : 100);
  if (world.rank == 1 && what == "dtype")
    communicator->all_reduce(values.data(), values.data(), 100, DType::i32, ReduceOp::sum)->wait();
  if (world.rank == 1 && what == "reduce")
    communicator->all_reduce(values.data(), values.data(), 100, DType::f32, ReduceOp::max)->wait();
  if (world.rank == 1 && what == "operation")
    communicator->broadcast(values.data(), 100, DType::f32, 1)->wait();
  if (world.rank == 1 && what == "order") communicator->barrier()->wait();
  if (what == "dtype" || what == "reduce" || what == "operation" || what == "order") {
    sum(100);
    communicator->barrier()->wait();
  }
  if (what == "kill") {
    sum(100);
    if (world.rank == 1) std::raise(SIGKILL);
    for (;;) sum(100);
  }
  if (what == "stall") {
    sum(100);
    if (world.rank == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
    sum(100);
  }
  return 0;
}

}  // namespace
}  // namespace shoal::collectives

int main(int argc, char** argv) {
  try {
    return shoal::collectives::run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "mpi");
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "rank failed: %s\n", problem.what());
    return 1;
  }
}
