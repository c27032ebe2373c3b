// A rank under mpirun. The first argument names the checks to run, and the second one the backend.
// Exit status 0: all checks passed. tests/collectives/mpirun_test.cc starts it.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "predictable.h"

#include "shoal/collectives/algorithm/canonical_tree.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#if SHOAL_HAVE_MPI
#include "shoal/collectives/backend/mpi/engine.h"
#include "shoal/runtime/rendezvous/world.h"
#endif

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
  const auto notices = log::notices();
  const auto said = std::ranges::any_of(notices, [](const log::Notice& notice) {
    return notice.text.find("of 16-bit floats, which MPI's cannot add") != std::string::npos;
  });
  expect(said == (communicator.backend() == "mpi"),
         "the notice that MPI's reductions are replaced");
}

// Sums of random numbers must have the bytes of rank 0's result on all ranks.
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
  expect(communicator.split(-1, 0) == nullptr, "a split with color -1");

  // Messages are received in another order than sent, while collectives run.
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

// Counts beyond MPI's range are refused on every rank, although only the root has the long buffer,
// so no rank is left waiting. The pointers are never dereferenced.
void check_refused(Communicator& communicator) {
  constexpr std::int64_t kCount = 1'500'000'000;
  std::vector<float> recv(200);  // allocated before the send buffer, so that the two do not overlap
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
  // For all_to_all_v the other ranks know a rank's counts only from the cards.
  const std::vector<std::int64_t> long_counts{1, 3'000'000'000}, counts{1, 1};
  const bool longer = communicator.rank() == 1;
  communicator.all_to_all_v(send, longer ? long_counts : counts, recv.data(), counts, DType::u8)
      ->wait();
}

// Prints this rank's failure, then waits until all ranks have done so: mpirun ends all ranks with
// the first one that ends without finalizing MPI.
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

// Ranks 2 and 1 of the job, in this order, form a group in which they are 0 and 1.
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

// Sums of f32 must have the bits of the canonical tree. MPI changes its algorithm between these
// counts.
float term(int rank, std::int64_t i) {
  std::mt19937 random(static_cast<unsigned>(1000 * i + rank));
  return std::normal_distribution<float>()(random);
}
float tree(int begin, int size, std::int64_t i) {
  if (size == 1) return term(begin, i);
  const int left = algorithm::canonical_left(size);
  return tree(begin, left, i) + tree(begin + left, size - left, i);
}
void check_fixed_order(Communicator& c) {
  const int rank = c.rank(), size = c.size(), root = size - 1;
  for (const std::int64_t part : {1, 70, 700}) {
    const std::int64_t count = part * size;
    std::vector<float> send, right;
    for (std::int64_t i = 0; i < count; ++i) {
      send.push_back(term(rank, i));
      right.push_back(tree(0, size, i));
    }
    const auto same = [&](const std::vector<float>& got, std::int64_t begin, std::int64_t n) {
      return std::memcmp(got.data(), right.data() + begin, static_cast<std::size_t>(n) * 4) == 0;
    };
    std::vector<float> recv(send.size());
    c.all_reduce(send.data(), recv.data(), count, DType::f32, ReduceOp::sum)->wait();
    expect(same(recv, 0, count), fmt::format("fixed order: all_reduce of {}", count));
    c.reduce(send.data(), recv.data(), count, DType::f32, ReduceOp::sum, root)->wait();
    expect(rank != root || same(recv, 0, count), fmt::format("fixed order: reduce of {}", count));
    c.reduce_scatter(send.data(), recv.data(), part, DType::f32, ReduceOp::sum)->wait();
    expect(same(recv, rank * part, part), fmt::format("fixed order: reduce_scatter of {}", part));
  }
}

// Rank 1 aborts. Rank 0 learns of it long before its deadline, however it waits.
void check_abort(const World& world, Store& store, Communicator& communicator) {
  std::vector<float> values(100, 1.0f);
  const auto in_a_part = [&](const std::string& what, auto&& wait) {
    const auto part = communicator.split(0, world.rank);
    all_say(world, store, what, [&] {
      if (world.rank == 1) part->abort("enough");
      wait(*part);
    });
  };
  const auto test_only = [](const WorkPtr& work) {
    while (!work->test()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  in_a_part("waits", [&](Communicator& part) { part.barrier()->wait(); });
  in_a_part("tests", [&](Communicator& part) { test_only(part.barrier()); });
  in_a_part("messages", [&](Communicator& part) {
    test_only(part.recv(values.data(), 4, DType::f32, 1 - world.rank));
  });
}

#if SHOAL_HAVE_MPI
// Ranks that stop between two steps of forming a group. A Communicator cannot be made to do that.
void check_engine(const World& world, Store& store) {
  CommunicatorOptions options;
  mpi::MpiRuntime::instance();
  const auto make = [&](const std::string& what) {
    return std::make_unique<mpi::MpiEngine>(MPI_COMM_WORLD, store, "shoal/test/" + what, options,
                                            std::vector{0, 1});
  };
  const bool first = world.rank == 0;
  options.deadline_seconds = 60;
  const auto unsplit = make("unsplit");
  all_say(world, store, "unsplit", [&] {
    if (first) unsplit->split(0, 0, Deadline::in_seconds(0.5));
  });
  // Dropping the group cancels its receives, so MPI writes nowhere afterwards.
  const auto cancelled = make("cancelled");
  all_say(world, store, "cancelled", [&] {
    std::vector<float> values(4);
    Call barrier, recv;
    recv.operation = Operation::recv;
    recv.recv = values.data();
    recv.count = 4;
    recv.dtype = DType::f32;
    recv.root = 1;
    if (!first) return;
    const auto a = cancelled->submit(barrier), b = cancelled->submit(recv);
    try {
      cancelled->wait(*a, Deadline::in_seconds(0.5));
    } catch (const Error&) {
      const std::lock_guard lock(mpi::MpiRuntime::instance().mutex);
      throw Error(ErrorCode::internal,
                  fmt::format("{} kept", mpi::MpiRuntime::instance().outstanding.size()));
    }
  });
  options.deadline_seconds = 0.5;
  all_say(world, store, "unmade", [&] {
    if (first) make("unmade");
  });
}
#endif

int run(const std::string& what, const std::string& backend) {
  World world = discover_world();
  const auto store = make_store(world, Deadline::in_seconds(30));
  CommunicatorOptions options;
  options.backend = backend;
  options.deadline_seconds = what == "stall" || what == "silent" || what == "unjoined" ? 1 : 60;
  options.fixed_order = what == "fixed";
  if (what == "unjoined") {
    all_say(world, *store, what, [&] {
      if (world.rank == 0) make_communicator(world, *store, options);
    });
    return 0;
  }
#if SHOAL_HAVE_MPI
  if (what == "engine") {
    check_engine(world, *store);
    return 0;
  }
#endif
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
  if (what == "fixed") check_fixed_order(*communicator);
  if (what == "abort") check_abort(world, *store, *communicator);
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
