// Ranks that are threads of one process must not change its environment: setenv() may move a value
// while a getenv() of another rank, or of a library, reads it.
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/calls.h"
#include "support/ranks.h"
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"

namespace {

std::mutex mutex;
std::vector<std::string>* by_others = nullptr;  // changes made by threads other than `main_thread`
std::thread::id main_thread;

void note(const char* name) {
  const std::lock_guard lock(mutex);
  if (by_others != nullptr && std::this_thread::get_id() != main_thread)
    by_others->emplace_back(name);
}

template <typename Function>
Function next_of(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// Replaces the C library's function for the program and its libraries.
extern "C" int setenv(const char* name, const char* value, int replace) noexcept {
  if (replace != 0 || std::getenv(name) == nullptr) note(name);
  return next_of<int (*)(const char*, const char*, int)>("setenv")(name, value, replace);
}
extern "C" int unsetenv(const char* name) noexcept {
  note(name);
  return next_of<int (*)(const char*)>("unsetenv")(name);
}
extern "C" int putenv(char* text) noexcept {
  note(text);
  return next_of<int (*)(char*)>("putenv")(text);
}

namespace shoal::collectives {
namespace {

TEST(Environment, IsNotChangedWhileRanksRun) {
  // libfabric has not been opened yet, so its one-time setup happens here.
  std::vector<std::string> changed;
  main_thread = std::this_thread::get_id();
  by_others = &changed;
  std::thread([] { ::setenv("SHOAL_TEST_ENVIRONMENT", "1", 1); }).join();
  EXPECT_THAT(changed, ::testing::ElementsAre("SHOAL_TEST_ENVIRONMENT"))
      << "the hook must notice changes";
  changed.clear();
  shoal::test::run_thread_ranks(2, [](World world, Store& store) {
    world.host = world.rank == 0 ? "a" : "b";
    const auto communicator = make_communicator(world, store, shoal::test::with_deadline(60));
    std::vector<float> values(1000, 1.0f);
    shoal::test::sum(*communicator, values);
    EXPECT_EQ(values.back(), 2.0f);
  });
  by_others = nullptr;
  EXPECT_THAT(changed, ::testing::IsEmpty());
}

}  // namespace
}  // namespace shoal::collectives
