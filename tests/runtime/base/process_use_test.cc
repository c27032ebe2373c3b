#include "shoal/runtime/base/process_use.h"

#include <filesystem>
#include <fstream>

#include "support/temporary_directory.h"
#include <gtest/gtest.h>

namespace shoal {
namespace {

constexpr const char* kNetwork = R"(Inter-|   Receive                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo: 5000 1 0 0 0 0 0 0 5000 1 0 0 0 0 0 0
  eth0: 100 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0
 ens5f1:3000000000 1 0 0 0 0 0 0 4000000000 1 0 0 0 0 0 0
 short: 7 1
)";

TEST(ProcessUse, AddsTheInterfacesButNotTheLoopback) {
  ProcessUse use;
  add_network(use, kNetwork);
  EXPECT_EQ(use.received_bytes, 3'000'000'100);
  EXPECT_EQ(use.sent_bytes, 4'000'000'020);
}

TEST(ProcessUse, ReadsTheKernelsFiles) {
  testing::TemporaryDirectory root;
  std::filesystem::create_directories(root / "proc/self");
  std::filesystem::create_directories(root / "proc/net");
  std::ofstream(root / "proc/self/statm") << "1000 25 3 1 0 9 0\n";
  std::ofstream(root / "proc/net/dev") << kNetwork;
  const ProcessUse use = process_use(root.path());
  EXPECT_EQ(use.resident_bytes, 25 * 4096);
  EXPECT_EQ(use.received_bytes, 3'000'000'100);
}

TEST(ProcessUse, OfThisProcessGrows) {
  const ProcessUse before = process_use();
  EXPECT_GT(before.resident_bytes, 1 << 20);
  ProcessUse now = before;
  while (now.processor_seconds < before.processor_seconds + 0.05) now = process_use();
  EXPECT_LT(now.processor_seconds, before.processor_seconds + 5);
}

TEST(ProcessUse, WithoutFilesIsZero) {
  const ProcessUse use = process_use("/nowhere");
  EXPECT_EQ(use.resident_bytes, 0);
  EXPECT_EQ(use.sent_bytes, 0);
}

}  // namespace
}  // namespace shoal
