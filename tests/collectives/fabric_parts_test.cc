// Parts of the fabric transport that work without libfabric: striping, the choice of rails,
// interface lists, the sockets for small messages.
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "shoal/collectives/transport/fabric/datagrams.h"
#include "shoal/collectives/transport/fabric/rail_choice.h"
#include "shoal/collectives/transport/fabric/socket_lane.h"
#include "shoal/collectives/transport/fabric/striping.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kKiB = 1024, kMiB = 1024 * kKiB;

TEST(Datagrams, AreRefusedIfTheQueueCouldOverrun) {
  constexpr std::uint32_t kOld = 1 << 16 | 17, kLast = 2 << 16 | 3, kMended = 2 << 16 | 4;
  EXPECT_NO_THROW(fabric::check_datagrams("udp;ofi_rxd", kOld, fabric::kDatagramWindow, 32));
  EXPECT_NO_THROW(fabric::check_datagrams("udp;ofi_rxd", kMended, 128, 1000));
  EXPECT_NO_THROW(fabric::check_datagrams("tcp;ofi_rxm", kOld, 128, 1000));
  EXPECT_EQ(fabric::datagram_receives("udp;ofi_rxd", kLast, 1024), 256u);
  EXPECT_EQ(fabric::datagram_receives("udp;ofi_rxd", kLast, 64), 64u);
  EXPECT_EQ(fabric::datagram_receives("udp;ofi_rxd", kMended, 1024), 1024u);
  EXPECT_EQ(fabric::datagram_receives("tcp;ofi_rxm", kOld, 1024), 1024u);
  const auto refusal = [](std::uint32_t version, int window, int peers) -> std::string {
    try {
      fabric::check_datagrams("udp;ofi_rxd", version, window, peers);
      return {};
    } catch (const Error& problem) {
      EXPECT_EQ(problem.code(), ErrorCode::unavailable);
      return problem.what();
    }
  };
  EXPECT_THAT(refusal(kOld, fabric::kDatagramWindow, 33), HasSubstr("FI_OFI_RXD_MAX_UNACKED=15 "));
  EXPECT_THAT(refusal(kLast, 128, 8), HasSubstr("libfabric 2.3 overruns"));
  EXPECT_THAT(refusal(kOld, 1, 600), HasSubstr("use tcp or libfabric 2.4"));
}

TEST(Striping, CoversEveryByteOnceAndCountsAgree) {
  for (int rails = 1; rails <= 8; ++rails)
    for (const std::int64_t largest :
         {std::numeric_limits<std::int64_t>::max(), 1L << 30, 300 * kKiB, 4096L, 100L})
      for (const std::int64_t bytes : {0L, 1L, 127L, 128L, 129L, 128 * kKiB - 1, 128 * kKiB,
                                       128 * kKiB + 1, 256 * kKiB + 1, kMiB + 3, 3 * kMiB - 5}) {
        const fabric::StripingRule rule{128 * kKiB, largest, rails};
        for (const std::uint32_t first : {0u, 1u, 0xffffffffu}) {
          const auto segments = fabric::cut_into_segments(bytes, rule, first);
          EXPECT_EQ(static_cast<std::int64_t>(segments.size()), fabric::count_segments(bytes, rule))
              << bytes << " bytes, " << rails << " rails, at most " << largest;
          std::int64_t next = 0;
          for (const fabric::Segment& segment : segments) {
            EXPECT_EQ(segment.offset, next);
            EXPECT_GT(segment.bytes, 0);
            EXPECT_LE(segment.bytes, largest);
            EXPECT_GE(segment.rail, 0);
            EXPECT_LT(segment.rail, rails);
            EXPECT_TRUE(largest < fabric::kStripeAlignment ||
                        segment.offset % fabric::kStripeAlignment == 0);
            next += segment.bytes;
          }
          EXPECT_EQ(next, bytes);
        }
      }
}

TEST(Striping, UsesAnotherRailForEach128KiB) {
  const auto rails_used = [](std::int64_t bytes, int rails) {
    std::vector<int> used;
    for (const fabric::Segment& segment :
         fabric::cut_into_segments(bytes, {128 * kKiB, kMiB << 10, rails}, 1))
      used.push_back(segment.rail);
    return used;
  };
  EXPECT_THAT(rails_used(128 * kKiB, 4), ElementsAre(1));
  EXPECT_THAT(rails_used(128 * kKiB + 1, 4), ElementsAre(1, 2));
  EXPECT_THAT(rails_used(64 * kMiB + 3, 4), ElementsAre(1, 2, 3, 0));
  EXPECT_THAT(rails_used(64 * kMiB + 3, 1), ElementsAre(0));
  const auto even = fabric::cut_into_segments(64 * kMiB, {128 * kKiB, kMiB << 10, 4}, 0);
  for (const fabric::Segment& segment : even) EXPECT_EQ(segment.bytes, 16 * kMiB);
}

TEST(Striping, RefusesInvalidArguments) {
  EXPECT_THROW(fabric::count_segments(-1, {}), Error);
  EXPECT_THROW(fabric::count_segments(1, {128, 128, 0}), Error);
}

TEST(Interfaces, CanBeIncludedAndExcluded) {
  const auto only = fabric::parse_interface_filter("eth0,10.0.0.0/16");
  EXPECT_TRUE(only.admits({"eth0", "x"}));
  EXPECT_TRUE(only.admits({"eth7", "10.0.0.0/16"}));
  EXPECT_FALSE(only.admits({"eth1", "x"}));
  const auto all_but = fabric::parse_interface_filter("^lo,docker0");
  EXPECT_TRUE(all_but.admits({"eth0"}));
  EXPECT_FALSE(all_but.admits({"docker0"}));
  for (const char* wrong : {"", ",", "eth0,", "^", "eth0,^lo", "^^lo", "a b"}) {
    try {
      fabric::parse_interface_filter(wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& problem) {
      EXPECT_THAT(problem.what(), HasSubstr("^lo,docker0"));
    }
  }
}

TEST(Rails, AreThoseWhoseNetworkAllRanksHave) {
  const std::vector<fabric::RailSite> two{{"eth0", "10.0.0.0/24"}, {"eth1", "10.0.1.0/24"}};
  const std::vector<fabric::RailSite> one{{"ens5", "10.0.1.0/24"}};
  const auto common = fabric::find_common_rails({two, one, two});
  EXPECT_FALSE(common.by_index);
  EXPECT_THAT(common.sites, ElementsAre(ElementsAre(1), ElementsAre(0), ElementsAre(1)));
  // Routed networks have no common prefix, so rails are paired by index.
  const auto routed = fabric::find_common_rails({two, {{"eth0", "10.9.0.0/24"}}});
  EXPECT_TRUE(routed.by_index);
  EXPECT_THAT(routed.sites, ElementsAre(ElementsAre(0), ElementsAre(0)));
}

TEST(Rails, AreSharedEvenlyWithNearOnesFirst) {
  const auto equal = [](int ranks, int rails) {
    return fabric::share_rails(std::vector(static_cast<std::size_t>(ranks),
                                           std::vector<int>(static_cast<std::size_t>(rails), 0)));
  };
  EXPECT_THAT(equal(1, 4), ElementsAre(ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(equal(2, 4), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(equal(4, 4),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3)));
  EXPECT_THAT(equal(4, 1),
              ElementsAre(ElementsAre(0), ElementsAre(0), ElementsAre(0), ElementsAre(0)));
  // A p4d has 8 accelerators and 4 cards. The last rank is on the other socket.
  for (int ranks = 1; ranks <= 17; ++ranks)
    for (int rails = 1; rails <= 32; ++rails) {
      std::vector<int> uses(static_cast<std::size_t>(rails), 0);
      for (const auto& share : equal(ranks, rails)) {
        EXPECT_FALSE(share.empty());
        for (const int rail : share) ++uses[static_cast<std::size_t>(rail)];
      }
      const auto [least, most] = std::ranges::minmax(uses);
      EXPECT_GE(least, 1) << ranks << " ranks, " << rails << " rails";
      EXPECT_LE(most - least, 1) << ranks << " ranks, " << rails << " rails";
    }
  EXPECT_THAT(fabric::share_rails({{1, 1, 0, 0}, {0, 0, 1, 1}}),
              ElementsAre(ElementsAre(2, 3), ElementsAre(0, 1)));
}

TEST(Rails, PairByNetworkAndThenByIndex) {
  EXPECT_THAT(fabric::pair_rails({"a", "b"}, {"b", "a"}), ElementsAre(1, 0));
  EXPECT_THAT(fabric::pair_rails({"efa", "efa"}, {"efa", "efa", "efa"}), ElementsAre(0, 1));
  EXPECT_THAT(fabric::pair_rails({"efa", "efa", "efa"}, {"efa", "efa"}), ElementsAre(0, 1, 0));
  EXPECT_THAT(fabric::pair_rails({"a", "c"}, {"a"}), ElementsAre(0, -1));
  EXPECT_TRUE(fabric::is_virtual_interface("docker0"));
  EXPECT_FALSE(fabric::is_virtual_interface("eth0"));
}

constexpr std::size_t kLargest = 9000;
constexpr std::uint32_t kMagic = 77;

std::string loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return {reinterpret_cast<const char*>(&address), sizeof address};
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Ranks 0 and 1 in one thread, and the messages that each received, in order.
struct Lanes {
  fabric::SocketLane low{loopback(), 0, 2, kLargest}, high{loopback(), 1, 2, kLargest};
  std::vector<std::string> to_low, to_high;

  Lanes() {
    low.start({"", high.address()}, kMagic);
    high.start({low.address(), ""}, kMagic);
  }
  static void poll(fabric::SocketLane& lane, std::vector<std::string>& into) {
    lane.look_closely();
    look(lane, into, false);
  }
  // Polls without look_closely(): only the sockets of wanted peers.
  static bool look(fabric::SocketLane& lane, std::vector<std::string>& into, bool wanted) {
    return lane.poll(
        [&](std::span<const std::byte> message) {
          into.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
        },
        [wanted](int) { return wanted; });
  }
  void poll() {
    poll(low, to_low);
    poll(high, to_high);
  }
  template <typename Condition>
  bool poll_until(Condition&& condition) {
    const Deadline deadline = Deadline::in_seconds(30);
    while (!deadline.passed()) {
      if (condition()) return true;
      poll();
    }
    return false;
  }
  bool connect() {
    high.reach(0);
    return poll_until([&] { return low.send(1, bytes_of("hello"), {}); }) &&
           poll_until([&] { return high.send(0, bytes_of("hello"), {}); }) &&
           poll_until([&] { return to_low.size() == 1 && to_high.size() == 1; });
  }
};

TEST(SocketLane, IsOpenedByTheHigherRank) {
  Lanes lanes;
  lanes.low.reach(1);
  for (int i = 0; i < 100; ++i) lanes.poll();
  EXPECT_FALSE(lanes.low.send(1, bytes_of("early"), {}));
  EXPECT_FALSE(lanes.high.send(0, bytes_of("early"), {}));
  EXPECT_TRUE(lanes.connect());
  EXPECT_THAT(lanes.to_low, ElementsAre("hello"));
  EXPECT_THAT(lanes.to_high, ElementsAre("hello"));
}

// Far more data than the sockets buffer, so the kernel splits messages anywhere.
TEST(SocketLane, DeliversMessagesWholeAndDefersThoseWithoutRoom) {
  Lanes lanes;
  ASSERT_TRUE(lanes.connect());
  std::vector<std::string> sent = {"hello"};
  const std::string header = "header";
  std::size_t refused = 0;
  for (std::size_t i = 0; i < 20'000; ++i) {
    const std::size_t length = i % 5 == 0 ? kLargest - header.size() : i * 131 % 3000;
    const std::string payload(length, static_cast<char>('a' + i % 26));
    while (!lanes.low.send(1, bytes_of(header), bytes_of(payload))) {
      if (refused++ == 0) {
        EXPECT_TRUE(lanes.low.unsent());
      }
      lanes.poll();
    }
    sent.push_back(header + payload);
  }
  EXPECT_GT(refused, 0u);
  EXPECT_TRUE(lanes.poll_until([&] { return lanes.to_high.size() == sent.size(); }));
  EXPECT_FALSE(lanes.low.unsent());
  EXPECT_EQ(lanes.to_high, sent);
}

struct RawHello {
  std::uint32_t magic;
  std::int32_t rank;
};

// Connects as rank 1 would, and sends these bytes as its hello.
transport::FileDescriptor raw_peer(const fabric::SocketLane& lane, const RawHello& hello,
                                   const std::string& more) {
  transport::FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  std::memcpy(&address, lane.address().data(), sizeof address);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::string bytes = std::string(reinterpret_cast<const char*>(&hello), sizeof hello) + more;
  EXPECT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  return fd;
}

std::string lost(Lanes& lanes) {
  std::string why;
  lanes.poll_until([&] {
    for (const auto& loss : lanes.low.take_losses()) why = loss.why;
    return !why.empty();
  });
  return why;
}

// Polling a socket is a system call. A lane that expects nothing polls rarely, and still misses no
// message.
TEST(SocketLane, PollsOftenWhenAMessageIsExpectedAndElseRarely) {
  Lanes lanes;
  ASSERT_TRUE(lanes.connect());
  const auto looks_until_it_comes = [&](bool wanted) {
    EXPECT_TRUE(lanes.high.send(0, bytes_of("more"), {}));
    pollfd entry{lanes.low.descriptor(), POLLIN, 0};
    EXPECT_EQ(poll(&entry, 1, 30'000), 1);
    lanes.to_low.clear();
    int looks = 1;
    while (!Lanes::look(lanes.low, lanes.to_low, wanted) && looks < 1000) ++looks;
    EXPECT_THAT(lanes.to_low, ElementsAre("more"));
    return looks;
  };
  (void)looks_until_it_comes(false);  // so the next unconditional poll is far away
  EXPECT_EQ(looks_until_it_comes(true), 1);
  EXPECT_GT(looks_until_it_comes(false), 8);
}

TEST(SocketLane, RejectsForeignConnections) {
  Lanes lanes;
  for (const RawHello& hello :
       {RawHello{kMagic + 1, 1}, RawHello{kMagic, 0}, RawHello{kMagic, 2}, RawHello{kMagic, -1}}) {
    const transport::FileDescriptor stranger = raw_peer(lanes.low, hello, "");
    char byte = 0;
    EXPECT_TRUE(lanes.poll_until([&] { return recv(stranger.get(), &byte, 1, MSG_DONTWAIT) == 0; }))
        << hello.magic << " " << hello.rank;
  }
  EXPECT_TRUE(lanes.connect());
  EXPECT_TRUE(lanes.low.take_losses().empty());
}

TEST(SocketLane, LosesAPeerThatBreaksOffButNotOneThatLeaves) {
  {
    Lanes lanes;
    const std::string half("\x08\0\0\0four", 8);
    raw_peer(lanes.low, {kMagic, 1}, half);
    EXPECT_THAT(lost(lanes), HasSubstr("in the middle of a message"));
  }
  {
    Lanes lanes;
    const transport::FileDescriptor peer = raw_peer(lanes.low, {kMagic, 1}, std::string(8, '\x7f'));
    EXPECT_THAT(lost(lanes), HasSubstr("something else than a message"));
  }
  Lanes lanes;
  raw_peer(lanes.low, {kMagic, 1}, std::string("\x04\0\0\0last", 8));
  EXPECT_TRUE(lanes.poll_until([&] { return lanes.to_low.size() == 1; }));
  for (int i = 0; i < 200; ++i) lanes.poll();
  EXPECT_TRUE(lanes.low.take_losses().empty());
  EXPECT_FALSE(lanes.low.send(1, bytes_of("gone"), {}));
}

}  // namespace
}  // namespace shoal::collectives
