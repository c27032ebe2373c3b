// Ranks that are threads of one process leave its environment as it is: nothing tells a getenv() of
// another rank, or of a library, that setenv() moves what it reads.
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
std::vector<std::string>* by_others = nullptr;  // set by threads that are not `main_thread`
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

// In place of the C library's, for all that is loaded.
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
  // Nothing has opened libfabric before: what is done once would be done.
  std::vector<std::string> changed;
  main_thread = std::this_thread::get_id();
  by_others = &changed;
  std::thread([] { ::setenv("SHOAL_TEST_ENVIRONMENT", "1", 1); }).join();
  EXPECT_THAT(changed, ::testing::ElementsAre("SHOAL_TEST_ENVIRONMENT")) << "it would be seen";
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
