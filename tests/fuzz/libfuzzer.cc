// One family's targets as a libFuzzer program (llvm.org/docs/LibFuzzer.html): --target=NAME picks
// one of them, --list prints names and sources.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "fuzz/frame.h"
#include "support/use.h"
#include <fmt/format.h>
#include <sanitizer/allocator_interface.h>

namespace {

const shoal::fuzz::Target* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(const int* count, char*** words) {
  const auto& targets = shoal::fuzz::targets();
  for (int i = 1; i < *count; ++i) {
    const std::string_view word = (*words)[i];
    for (const auto& target : targets) {
      if (word == "--list") fmt::print("{} {}\n", target.name, target.sources);
      if (word == fmt::format("--target={}", target.name)) chosen = &target;
    }
    if (word == "--list") std::exit(0);
  }
  if (chosen == nullptr) {
    fmt::print(stderr, "give one of --list's names as --target=NAME\n");
    std::exit(2);
  }
  __sanitizer_install_malloc_and_free_hooks(
      [](const volatile void*, std::size_t bytes) { shoal::testing::heap_use().add(bytes); },
      [](const volatile void* block) {
        shoal::testing::heap_use().remove(
            __sanitizer_get_allocated_size(const_cast<const void*>(block)));
      });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
  const std::string problem =
      shoal::fuzz::finding(*chosen, {reinterpret_cast<const char*>(bytes), count});
  if (problem.empty()) return 0;
  fmt::print(stderr, "FINDING: {}\n", problem);
  std::abort();
}
