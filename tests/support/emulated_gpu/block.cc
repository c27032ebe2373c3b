#include "support/emulated_gpu/block.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "support/emulated_gpu/sanitizer.h"
#include "support/emulated_gpu/stream.h"
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <fmt/format.h>
#include <sys/mman.h>

constinit thread_local uint3 threadIdx{}, blockIdx{};
constinit thread_local dim3 blockDim{}, gridDim{};

namespace shoal::emulated_gpu {
namespace {

using boost::context::fiber;

// Each thread copies a kernel's parameters, up to 32 KiB, to its stack. AddressSanitizer's frames
// are wider, and it writes its report on the same stack.
constexpr std::size_t kStackBytes = std::size_t{kAddressSanitizer ? 512 : 128} * 1024;
constexpr std::size_t kMostSharedBytes = std::size_t{227} * 1024;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kMostThreads = 1024;

bool same(const Where& a, const Where& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::string_view(a.file_name()) == b.file_name());
}
std::string text(const Where& where) {
  std::string_view file = where.file_name();
  if (file.starts_with("./")) file.remove_prefix(2);
  return fmt::format("{}:{}", file, where.line());
}
std::string text(const uint3& at) { return fmt::format("({}, {}, {})", at.x, at.y, at.z); }

uint3 place_in(const dim3& size, std::size_t number) {
  return {static_cast<unsigned>(number % size.x), static_cast<unsigned>(number / size.x % size.y),
          static_cast<unsigned>(number / size.x / size.y)};
}
std::size_t count_of(const dim3& size) { return std::size_t{size.x} * size.y * size.z; }

// Dynamic shared memory, followed by a protected page. AddressSanitizer checks it to the byte.
class SharedMemory {
 public:
  SharedMemory()
      : base_(static_cast<unsigned char*>(mmap(nullptr, kRoom + kPage, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    if (base_ == MAP_FAILED || mprotect(base_ + kRoom, kPage, PROT_NONE) != 0)
      fail("there is no memory for a block's shared memory");
    forbid(base_, kRoom);
  }
  ~SharedMemory() {
    allow(base_, kRoom);
    (void)munmap(base_, kRoom + kPage);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Fills it with NaN in every floating dtype, so that no block can rely on an earlier one's
  // values.
  void begin(std::size_t bytes) {
    if (bytes != bytes_) {
      forbid(base_, kRoom);
      begin_ = base_ + kRoom - (bytes + 15) / 16 * 16;
      bytes_ = bytes;
      allow(begin_, bytes);
    }
    std::memset(begin_, 0xff, bytes);
  }
  unsigned char* data() const { return begin_; }

 private:
  static constexpr std::size_t kRoom = (kMostSharedBytes + kPage - 1) / kPage * kPage;
  unsigned char *base_, *begin_ = base_ + kRoom;
  std::size_t bytes_ = 0;
};

// The order of a launch's turns, as SHOAL_EMULATED_GPU_ORDER chooses it.
class Order {
 public:
  explicit Order(unsigned coins) {
    const char* set = std::getenv("SHOAL_EMULATED_GPU_ORDER");
    const std::string_view order = set ? set : "mixed";
    std::uint64_t seed = 0;
    const auto [end, error] = std::from_chars(order.data(), order.data() + order.size(), seed);
    if (error == std::errc{} && end == order.data() + order.size()) {
      engine_.emplace(seed + coins);
      copies_at_once_ = (coins & 2u) != 0;
    } else if (order == "mixed") {
      reverse_ = (coins & 1u) != 0;
      copies_at_once_ = (coins & 2u) != 0;
    } else if (order == "reverse") {
      reverse_ = copies_at_once_ = true;
    } else if (order != "forward") {
      fail(fmt::format("SHOAL_EMULATED_GPU_ORDER='{}' is not mixed, forward, reverse or a number",
                       order));
    }
  }
  bool shuffled() const { return engine_.has_value(); }
  bool copies_at_once() const { return copies_at_once_; }
  void arrange(std::vector<std::uint32_t>& turns) {
    std::iota(turns.begin(), turns.end(), 0);
    if (reverse_) std::reverse(turns.begin(), turns.end());
    if (engine_) std::shuffle(turns.begin(), turns.end(), *engine_);
  }

 private:
  bool reverse_ = false, copies_at_once_ = false;
  std::optional<std::mt19937_64> engine_;
};

// Staggers the beginnings of stacks by a few cache lines. Stacks that start at page boundaries
// would share the same cache sets, and the fibers of a warp would evict each other.
class Stacks {
 public:
  Stacks(std::size_t number, StackOf& made) : shift_(number % 64 * 192), made_(&made) {}
  boost::context::stack_context allocate() {
    boost::context::stack_context made = whole_.allocate();
    made.sp = static_cast<char*>(made.sp) - shift_;
    made.size -= shift_;
    made_->bottom = static_cast<char*>(made.sp) - made.size;
    made_->bytes = made.size;
    return made;
  }
  void deallocate(boost::context::stack_context& made) {
    allow(static_cast<char*>(made.sp) - made.size, made.size);
    made.sp = static_cast<char*>(made.sp) + shift_;
    made.size += shift_;
    whole_.deallocate(made);
  }

 private:
  std::size_t shift_;
  StackOf* made_;
  boost::context::protected_fixedsize_stack whole_{kStackBytes};
};

// A fiber that runs threads one after another, as long as none of them has to wait.
struct Worker {
  fiber suspended;
  StackOf stack;
  Worker* from = nullptr;  // the worker that switched to this one
};
// First call on the fiber of `worker` after a switch.
void arrive(Worker& worker) { enter_stack(worker.from->stack, worker.stack); }
// Switches from one fiber to another.
void change(Worker& from, Worker& to) {
  to.from = &from;
  leave_stack(from.stack, to.stack);
  std::move(to.suspended).resume_with([&from](fiber&& left) {
    from.suspended = std::move(left);
    return fiber();
  });
  arrive(from);
}

struct Copy {
  void* to;
  const void* from;  // null: zeros
  unsigned group;
};

struct Thread {
  enum class State { fresh, ready, waiting, ended };
  State state = State::fresh;
  bool at_barrier = false;  // waiting for the block; false: for its warp
  uint3 index{};
  unsigned number = 0;
  Worker* worker = nullptr;
  Where where;
  unsigned mask = 0;
  void* part = nullptr;
  void (*finish)(Lanes) = nullptr;
  Vote vote = Vote::none;
  int result = 0;
  bool whole = false, mine = false;
  std::vector<Copy> copies;
  unsigned group = 0;  // the group of the copies started next
};

struct Warp {
  unsigned waiting = 0, alive = 0;
};

class Runner {
 public:
  Runner() {
    workers_.reserve(kMostThreads);
    tell_position(&emulated_gpu::position);
  }
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  void run(dim3 grid, dim3 block, std::size_t dynamic_shared, const std::function<void()>& body,
           const Where& launch);
  std::string position() const {
    return fmt::format("{}, thread {}", block_text(), text(now_->index));
  }

  unsigned lane() const { return now_->number % 32; }
  int barrier(Vote vote, bool mine, const Where& where);
  void in_warp(unsigned mask, bool whole, void (*finish)(Lanes), void* part, const Where& where);
  void copy(void* to, const void* from) {
    now_->copies.push_back({to, from, now_->group});
    if (order_.copies_at_once()) make_copies(*now_, now_->group + 1);
  }
  void end_group() { ++now_->group; }
  void wait_for_groups(unsigned but_the_last) {
    make_copies(*now_, now_->group < but_the_last ? 0 : now_->group - but_the_last);
  }
  unsigned char* shared() const { return shared_.data(); }

 private:
  std::string block_text() const {
    return fmt::format("{}, block {}", name_of(launch_), text(blockIdx));
  }
  void run_block();
  void enter(Thread& thread) {
    now_ = &thread;
    threadIdx = thread.index;
  }
  Thread* next_turn();
  void work(Worker& worker);
  Worker& idle_worker();
  // The worker whose fiber runs this thread.
  Worker& worker_of(Thread& thread) {
    enter(thread);
    return thread.state == Thread::State::fresh ? idle_worker() : *thread.worker;
  }
  void wait() {
    Worker& worker = *now_->worker;
    now_->state = Thread::State::waiting;
    Thread* const next = next_turn();
    if (!next) stuck();
    change(worker, worker_of(*next));
  }
  void end(Thread& thread);
  void meet(Warp& warp, unsigned lanes, const Thread& last);
  void settle(unsigned warp);  // completes meetings that waited for a lane that has now ended
  static void make_copies(Thread& thread, unsigned before_group);
  [[noreturn]] void stuck() const;

  std::minstd_rand coin_;  // gives the same sequence in every process
  Order order_{0};
  Where launch_;
  SharedMemory shared_;
  const std::function<void()>* body_ = nullptr;
  Worker home_;  // the caller of run()
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> idle_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<std::uint32_t> turns_;
  std::size_t turn_ = 0;
  unsigned arrived_ = 0, ended_ = 0;
  Thread* now_ = nullptr;
  bool over_ = false;  // fibers are returning
};

constinit thread_local Runner* running = nullptr;

Runner& current(const char* what) {
  if (!running) fail(fmt::format("{} outside a kernel", what));
  return *running;
}

Worker& Runner::idle_worker() {
  if (idle_.empty()) {
    workers_.push_back(std::make_unique<Worker>());
    Worker& made = *workers_.back();
    made.suspended =
        fiber(std::allocator_arg, Stacks(workers_.size(), made.stack), [this, &made](fiber&&) {
          arrive(made);
          while (!over_) work(made);
          leave_stack(made.stack, home_.stack, true);
          home_.from = &made;
          return std::move(home_.suspended);
        });
    idle_.push_back(&made);
  }
  Worker& worker = *idle_.back();
  idle_.pop_back();
  return worker;
}

// Ends each fiber by returning, so that no stack is unwound without a sanitizer's knowledge.
Runner::~Runner() {
  over_ = true;
  for (const auto& worker : workers_) change(home_, *worker);
}

// The next runnable thread in turn; null: none can run.
Thread* Runner::next_turn() {
  for (std::size_t tried = 0; tried < turns_.size(); ++tried) {
    turn_ = turn_ + 1 < turns_.size() ? turn_ + 1 : 0;
    Thread& thread = threads_[turns_[turn_]];
    if (thread.state == Thread::State::fresh || thread.state == Thread::State::ready)
      return &thread;
  }
  return nullptr;
}

// Runs threads from now_ on, until the next runnable one already has a fiber.
void Runner::work(Worker& worker) {
  for (;;) {
    now_->worker = &worker;
    (*body_)();
    end(*now_);
    Thread* const next = ended_ < threads_.size() ? next_turn() : nullptr;
    if (!next && ended_ < threads_.size()) stuck();
    if (next && next->state == Thread::State::fresh) {
      enter(*next);
      continue;
    }
    idle_.push_back(&worker);
    change(worker, next ? worker_of(*next) : home_);
    return;
  }
}

void Runner::end(Thread& thread) {
  make_copies(thread, thread.group + 1);
  thread.state = Thread::State::ended;
  ++ended_;
  Warp& warp = warps_[thread.number / 32];
  warp.alive &= ~(1u << thread.number % 32);
  if (warp.waiting != 0) settle(thread.number / 32);
}

void Runner::run(dim3 grid, dim3 block, std::size_t dynamic_shared,
                 const std::function<void()>& body, const Where& launch) {
  order_ = Order(static_cast<unsigned>(coin_() >> 16));
  launch_ = launch;
  body_ = &body;
  gridDim = grid;
  blockDim = block;
  threads_.resize(count_of(block));
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    threads_[i].index = place_in(block, i);
    threads_[i].number = static_cast<unsigned>(i);
  }
  warps_.resize((threads_.size() + 31) / 32);
  turns_.resize(threads_.size());
  std::vector<std::uint32_t> blocks(count_of(grid));
  order_.arrange(blocks);
  order_.arrange(turns_);
  for (const std::uint32_t number : blocks) {
    blockIdx = place_in(grid, number);
    if (order_.shuffled()) order_.arrange(turns_);
    shared_.begin(dynamic_shared);
    run_block();
  }
}

void Runner::run_block() {
  for (Thread& thread : threads_) {
    thread.state = Thread::State::fresh;
    thread.copies.clear();
    thread.group = 0;
  }
  for (Warp& warp : warps_) warp = {0, 0xffffffffu};
  if (const std::size_t rest = threads_.size() % 32) warps_.back().alive = (1u << rest) - 1;
  arrived_ = ended_ = 0;
  turn_ = 0;
  change(home_, worker_of(threads_[turns_[0]]));
}

int Runner::barrier(Vote vote, bool mine, const Where& where) {
  Thread& me = *now_;
  me.where = where;
  me.at_barrier = true;
  me.vote = vote;
  me.mine = mine;
  if (++arrived_ < threads_.size()) {
    wait();
    return me.result;
  }
  int count = 0;
  for (const Thread& thread : threads_) {
    if (!same(thread.where, where))
      fail(fmt::format("{}: thread {} is at the barrier of {}, thread {} at that of {}",
                       block_text(), text(thread.index), text(thread.where), text(me.index),
                       text(where)));
    count += thread.mine ? 1 : 0;
  }
  const int all = static_cast<int>(threads_.size());
  const int result = vote == Vote::any ? count > 0 : vote == Vote::all ? count == all : count;
  for (Thread& thread : threads_) {
    thread.result = result;
    if (&thread != &me) thread.state = Thread::State::ready;
  }
  arrived_ = 0;
  return result;
}

void Runner::in_warp(unsigned mask, bool whole, void (*finish)(Lanes), void* part,
                     const Where& where) {
  Thread& me = *now_;
  Warp& warp = warps_[me.number / 32];
  const unsigned own = 1u << me.number % 32;
  if ((mask & own) == 0)
    fail(fmt::format("{}: mask {:#x} of {} lacks the lane that calls it", position(), mask,
                     text(where)));
  me.at_barrier = false;
  me.where = where;
  me.mask = mask;
  me.part = part;
  me.finish = finish;
  me.whole = whole;
  warp.waiting |= own;
  const unsigned wanted = mask & warp.alive;
  if ((warp.waiting & wanted) == wanted)
    meet(warp, wanted, me);
  else
    wait();
}

// All of `lanes` have arrived.
void Runner::meet(Warp& warp, unsigned lanes, const Thread& last) {
  if (last.whole && lanes != 0xffffffffu)
    fail(fmt::format("{}: lanes {:#x} of the warp have ended before {}", position(), ~lanes,
                     text(last.where)));
  void* parts[32] = {};
  Thread* const first = &threads_[last.number / 32 * 32];
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((lanes >> lane & 1u) == 0) continue;
    const Thread& other = first[lane];
    if (!same(other.where, last.where) || other.mask != last.mask)
      fail(
          fmt::format("{}: thread {} is at {} with mask {:#x}, thread {} of its warp at {} with "
                      "mask {:#x}",
                      block_text(), text(other.index), text(other.where), other.mask,
                      text(last.index), text(last.where), last.mask));
    parts[lane] = other.part;
  }
  last.finish(parts);
  for (unsigned lane = 0; lane < 32; ++lane)
    if ((lanes >> lane & 1u) != 0 && first[lane].state == Thread::State::waiting)
      first[lane].state = Thread::State::ready;
  warp.waiting &= ~lanes;
}

void Runner::settle(unsigned number) {
  Warp& warp = warps_[number];
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((warp.waiting >> lane & 1u) == 0) continue;
    const Thread& thread = threads_[number * 32 + lane];
    const unsigned wanted = thread.mask & warp.alive;
    if ((warp.waiting & wanted) == wanted) meet(warp, wanted, thread);
  }
}

void Runner::make_copies(Thread& thread, unsigned before_group) {
  std::size_t made = 0;
  for (const Copy& copy : thread.copies) {
    if (copy.group >= before_group) break;
    if (copy.from)
      std::memcpy(copy.to, copy.from, 16);
    else
      std::memset(copy.to, 0, 16);
    ++made;
  }
  thread.copies.erase(thread.copies.begin(),
                      thread.copies.begin() + static_cast<std::ptrdiff_t>(made));
}

void Runner::stuck() const {
  const Thread* first = nullptr;
  const Thread* other = nullptr;
  std::size_t there = 0;
  for (const Thread& thread : threads_) {
    if (thread.state != Thread::State::waiting) continue;
    if (!first) first = &thread;
    if (same(thread.where, first->where)) ++there;
  }
  // Whether the thread is one that `first` waits for: a lane of its warp that is in its mask.
  for (const Thread& thread : threads_) {
    if (!first->at_barrier &&
        (thread.number / 32 != first->number / 32 || (first->mask >> thread.number % 32 & 1u) == 0))
      continue;
    if (!other && (thread.state == Thread::State::ended || !same(thread.where, first->where)))
      other = &thread;
  }
  std::string line = fmt::format("{}: {} of {} threads wait for ever at {}{}, thread {} first",
                                 block_text(), there, threads_.size(), text(first->where),
                                 first->at_barrier ? "" : fmt::format(" (mask {:#x})", first->mask),
                                 text(first->index));
  if (other)
    line += fmt::format(
        "; thread {} {}", text(other->index),
        other->state == Thread::State::ended ? "has ended" : "waits at " + text(other->where));
  fail(line);
}

}  // namespace

std::string name_of(Where launch) {
  return fmt::format("kernel launched at {} ({})", text(launch), launch.function_name());
}

void run_grid(dim3 grid, dim3 block, std::size_t dynamic_shared,
              const std::function<void()>& thread_body, Where launch) {
  // __shared__ variables are then shared by all host threads.
  static std::mutex one_at_a_time;
  std::unique_lock lock(one_at_a_time, std::defer_lock);
  if constexpr (kAddressSanitizer)
    if (!running) lock.lock();
  thread_local std::unique_ptr<Runner> runner;
  if (running) fail(fmt::format("{} within {}", name_of(launch), running->position()));
  if (!runner) runner = std::make_unique<Runner>();
  running = runner.get();
  runner->run(grid, block, dynamic_shared, thread_body, launch);
  running = nullptr;
}

cudaError_t check_launch(const void* kernel, dim3 grid, dim3 block, std::size_t dynamic_shared) {
  const bool fits = count_of(grid) > 0 && count_of(block) > 0 && count_of(block) <= kMostThreads &&
                    block.x <= 1024 && block.y <= 1024 && block.z <= 64 && grid.x <= 0x7fffffff &&
                    grid.y <= 65535 && grid.z <= 65535;
  if (!fits) return cudaErrorInvalidConfiguration;
  if (dynamic_shared > kMostSharedBytes ||
      dynamic_shared > static_cast<std::size_t>(dynamic_shared_limit(kernel)))
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

namespace {
std::atomic<std::uint64_t> launched{0};
}  // namespace

std::uint64_t launches() { return launched; }

cudaError_t queue_launch(const void* kernel, const Grid& grid, dim3 block,
                         std::size_t dynamic_shared, cudaStream_t stream,
                         std::function<void()> thread_body, std::span<const std::uintptr_t> words) {
  const cudaError_t status = check_launch(kernel, grid.blocks, block, dynamic_shared);
  if (status != cudaSuccess) return failed(status);
  ++launched;
  return enqueue(
      stream,
      [grid, block, dynamic_shared, body = std::move(thread_body)] {
        run_grid(grid.blocks, block, dynamic_shared, body, grid.from);
      },
      name_of(grid.from), words);
}

std::string position() { return running ? running->position() : std::string(); }

unsigned lane() { return current("a warp's operation").lane(); }

int block_barrier(Vote vote, bool mine, Where where) {
  return current("a barrier").barrier(vote, mine, where);
}

void in_warp(unsigned mask, bool whole, void (*finish)(Lanes lanes), void* part, Where where) {
  current("a warp's operation").in_warp(mask, whole, finish, part, where);
}

void copy_later(void* to, const void* from, bool inside) {
  Runner& runner = current("cp.async");
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(from) % 16 != 0)
    fail(fmt::format("{}: cp.async of 16 bytes from {} to {}, which are not both aligned to 16",
                     runner.position(), from, to));
  runner.copy(to, inside ? from : nullptr);
}
void end_group_of_copies() { current("cp.async").end_group(); }
void wait_for_groups_of_copies(int but_the_last) {
  current("cp.async").wait_for_groups(static_cast<unsigned>(but_the_last));
}

unsigned char* dynamic_shared_memory() { return current("dynamic shared memory").shared(); }

}  // namespace shoal::emulated_gpu
