// Tests the provider with plain libfabric calls: its attributes, transfers, refusals and losses.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "plain_endpoint.h"
#include "support/temporary_directory.h"

namespace shoal::test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Event = PlainEndpoint::Event;

// Two endpoints that have each other's address.
struct Pair {
  explicit Pair(const fi_info* hints, std::size_t queue_entries = 256)
      : a(hints, queue_entries), b(hints, queue_entries) {
    to_b = a.insert(b.name());
    to_a = b.insert(a.name());
  }
  // Reads both queues until `done`. Returns false after five seconds.
  template <typename Done>
  bool run(Done&& done) {
    const auto deadline = Clock::now() + std::chrono::seconds(5);
    while (!done()) {
      if (Clock::now() > deadline) return false;
      while (auto event = a.poll()) at_a.push_back(*event);
      while (auto event = b.poll()) at_b.push_back(*event);
    }
    return true;
  }
  void run_for(milliseconds time) {
    const auto end = Clock::now() + time;
    run([&] { return Clock::now() >= end; });
  }

  PlainEndpoint a, b;
  fi_addr_t to_a = 0, to_b = 0;
  std::vector<Event> at_a, at_b;
};

std::vector<std::uint8_t> pattern(std::size_t bytes, unsigned seed = 1) {
  std::vector<std::uint8_t> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    made[i] = static_cast<std::uint8_t>(i * 7 + i / 251 + seed);
  return made;
}

std::uint64_t address_of(const void* start) { return reinterpret_cast<std::uint64_t>(start); }

class BothFabrics : public EfaProvider, public ::testing::WithParamInterface<const char*> {
 protected:
  bool direct() const { return std::string(GetParam()) == "efa-direct"; }
};
INSTANTIATE_TEST_SUITE_P(, BothFabrics, ::testing::Values("efa", "efa-direct"),
                         [](const auto& fabric) {
                           return std::string(fabric.param) == "efa" ? "efa" : "direct";
                         });

TEST_P(BothFabrics, CarryMessagesWithData) {
  Pair pair(make_hints(GetParam()).get());
  std::vector<std::size_t> sizes{0, 1, 31, 32, 33, 8191, 8192, 8193, 8760};
  if (!direct()) sizes.insert(sizes.end(), {8761, (1 << 20) + 3});
  for (const std::size_t bytes : sizes) {
    const auto sent = pattern(bytes);
    std::vector<std::uint8_t> got(bytes + 5, 0xee);
    const Region from = pair.a.reg(sent.data(), bytes), to = pair.b.reg(got.data(), got.size());
    fi_context2 sending{}, receiving{};
    ASSERT_EQ(fi_recv(pair.b.endpoint.get(), got.data(), got.size(), fi_mr_desc(to.get()),
                      FI_ADDR_UNSPEC, &receiving),
              0);
    ASSERT_EQ(fi_senddata(pair.a.endpoint.get(), sent.data(), bytes, fi_mr_desc(from.get()), 77,
                          pair.to_b, &sending),
              0);
    pair.at_a.clear(), pair.at_b.clear();
    ASSERT_TRUE(pair.run([&] { return !pair.at_a.empty() && !pair.at_b.empty(); })) << bytes;
    EXPECT_FALSE(pair.at_a[0].failed);
    EXPECT_EQ(pair.at_a[0].entry.op_context, &sending);
    EXPECT_EQ(pair.at_a[0].entry.flags, FI_MSG | FI_SEND);
    EXPECT_FALSE(pair.at_b[0].failed);
    EXPECT_EQ(pair.at_b[0].entry.op_context, &receiving);
    EXPECT_EQ(pair.at_b[0].entry.flags, FI_MSG | FI_RECV | FI_REMOTE_CQ_DATA);
    EXPECT_EQ(pair.at_b[0].entry.len, bytes);
    EXPECT_EQ(pair.at_b[0].entry.data, 77u);
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), got.begin()));
    EXPECT_EQ(got[bytes], 0xee);
  }
}

TEST_P(BothFabrics, WriteWithData) {
  Pair pair(make_hints(GetParam()).get());
  for (const std::size_t bytes : {0U, 1U, 8192U, (3U << 20) + 5}) {
    const auto sent = pattern(bytes);
    std::vector<std::uint8_t> got(bytes + 2, 0xee);
    const Region from = pair.a.reg(sent.data(), bytes), to = pair.b.reg(got.data(), got.size());
    fi_context2 context{};
    ASSERT_EQ(fi_writedata(pair.a.endpoint.get(), sent.data(), bytes, fi_mr_desc(from.get()), 99,
                           pair.to_b, address_of(got.data() + 1), fi_mr_key(to.get()), &context),
              0);
    pair.at_a.clear(), pair.at_b.clear();
    ASSERT_TRUE(pair.run([&] { return !pair.at_a.empty() && !pair.at_b.empty(); })) << bytes;
    EXPECT_FALSE(pair.at_a[0].failed);
    EXPECT_EQ(pair.at_a[0].entry.flags, FI_RMA | FI_WRITE);
    EXPECT_EQ(pair.at_b[0].entry.op_context, nullptr);  // consumed no receive
    EXPECT_EQ(pair.at_b[0].entry.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
    EXPECT_EQ(pair.at_b[0].entry.data, 99u);
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), got.begin() + 1));
    EXPECT_EQ(got.front(), 0xee);
    EXPECT_EQ(got.back(), 0xee);
  }
}

TEST_F(EfaProvider, DirectWritesConsumeReceivesWithRxCqData) {
  const Info hints = make_hints("efa-direct");
  hints->mode |= FI_RX_CQ_DATA;
  Pair pair(hints.get());
  EXPECT_NE(pair.b.info->mode & FI_RX_CQ_DATA, 0u);
  std::array<std::uint8_t, 64> sent{5}, got{};
  const Region from = pair.a.reg(sent.data(), 64), to = pair.b.reg(got.data(), 64);
  fi_context2 context{}, receiving{};
  ASSERT_EQ(fi_writedata(pair.a.endpoint.get(), sent.data(), 64, fi_mr_desc(from.get()), 3,
                         pair.to_b, address_of(got.data()), fi_mr_key(to.get()), &context),
            0);
  pair.run_for(milliseconds(30));
  EXPECT_TRUE(pair.at_a.empty() && pair.at_b.empty());  // the receiver is not ready
  ASSERT_EQ(fi_recv(pair.b.endpoint.get(), got.data(), 64, fi_mr_desc(to.get()), FI_ADDR_UNSPEC,
                    &receiving),
            0);
  ASSERT_TRUE(pair.run([&] { return !pair.at_a.empty() && !pair.at_b.empty(); }));
  EXPECT_EQ(pair.at_b[0].entry.op_context, &receiving);
  EXPECT_EQ(pair.at_b[0].entry.data, 3u);
}

TEST_P(BothFabrics, InjectSmallThingsSilently) {
  Pair pair(make_hints(GetParam()).get());
  std::array<std::uint8_t, 64> got{}, window{};
  const Region to = pair.b.reg(got.data(), 64), target = pair.b.reg(window.data(), 64);
  fi_context2 receiving{};
  ASSERT_EQ(fi_recv(pair.b.endpoint.get(), got.data(), 64, fi_mr_desc(to.get()), FI_ADDR_UNSPEC,
                    &receiving),
            0);
  std::array<std::uint8_t, 33> sent{1, 2, 3};
  EXPECT_EQ(fi_inject(pair.a.endpoint.get(), sent.data(), 33, pair.to_b), -FI_EMSGSIZE);
  ASSERT_EQ(fi_inject(pair.a.endpoint.get(), sent.data(), 32, pair.to_b), 0);
  ASSERT_EQ(fi_inject_writedata(pair.a.endpoint.get(), sent.data(), 32, 8, pair.to_b,
                                address_of(window.data()), fi_mr_key(target.get())),
            0);
  sent.fill(0);  // the buffer may be reused at once
  ASSERT_TRUE(pair.run([&] { return pair.at_b.size() == 2; }));
  pair.run_for(milliseconds(20));
  EXPECT_TRUE(pair.at_a.empty());
  EXPECT_EQ(got[2], 3);
  EXPECT_EQ(window[2], 3);
}

TEST_P(BothFabrics, RefusePostsThatCannotSucceed) {
  const Info hints = make_hints(GetParam());
  hints->tx_attr->size = 4;
  hints->rx_attr->size = 3;
  Pair pair(hints.get());
  std::vector<std::uint8_t> bytes(9000);
  const Region region = pair.a.reg(bytes.data(), bytes.size());
  void* const descriptor = fi_mr_desc(region.get());
  std::array<fi_context2, 8> contexts{};
  fid_ep* const ep = pair.a.endpoint.get();
  EXPECT_EQ(fi_send(ep, bytes.data(), 8, descriptor, pair.to_b + 7, &contexts[0]), -FI_EINVAL);
  if (direct()) {
    EXPECT_EQ(fi_send(ep, bytes.data(), 8761, descriptor, pair.to_b, &contexts[0]), -FI_EMSGSIZE);
    EXPECT_EQ(fi_write(ep, bytes.data(), (std::size_t{1} << 30) + 1, descriptor, pair.to_b, 1, 1,
                       &contexts[0]),
              -FI_EMSGSIZE);
    EXPECT_EQ(fi_send(ep, bytes.data(), 8, nullptr, pair.to_b, &contexts[0]), -FI_EINVAL);
    EXPECT_EQ(fi_recv(ep, bytes.data(), 8, nullptr, FI_ADDR_UNSPEC, &contexts[0]), -FI_EINVAL);
  }
  EXPECT_EQ(fi_read(ep, bytes.data(), 8, descriptor, pair.to_b, 1, 1, &contexts[0]), -FI_ENOSYS);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(fi_send(ep, bytes.data(), 8, descriptor, pair.to_b, &contexts[i]), 0);
  EXPECT_EQ(fi_send(ep, bytes.data(), 8, descriptor, pair.to_b, &contexts[4]), -FI_EAGAIN);
  for (std::size_t i = 4; i < 7; ++i)
    EXPECT_EQ(fi_recv(ep, bytes.data(), 8, descriptor, FI_ADDR_UNSPEC, &contexts[i]), 0);
  EXPECT_EQ(fi_recv(ep, bytes.data(), 8, descriptor, FI_ADDR_UNSPEC, &contexts[7]), -FI_EAGAIN);
  fid_cq* sleeper = nullptr;
  fi_cq_attr attributes{};
  attributes.wait_obj = FI_WAIT_FD;
  EXPECT_EQ(fi_cq_open(pair.a.domain.get(), &attributes, &sleeper, nullptr), -FI_ENOSYS);
  EXPECT_EQ(fi_close(&pair.a.queue->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&pair.a.domain->fid), -FI_EBUSY);
}

TEST_P(BothFabrics, FailWritesOutsideRegisteredMemory) {
  Pair pair(make_hints(GetParam()).get());
  std::vector<std::uint8_t> sent(100, 1), got(200, 0);
  const Region from = pair.a.reg(sent.data(), 100);
  const Region to = pair.b.reg(got.data(), 100);
  const Region local = pair.b.reg(got.data(), 100, FI_SEND | FI_RECV);
  Region gone = pair.b.reg(got.data(), 100);
  const std::uint64_t gone_key = fi_mr_key(gone.get());
  gone.reset();
  struct Try {
    std::size_t offset;
    std::uint64_t key;
  };
  for (const auto [offset, key] :
       {Try{1, fi_mr_key(to.get())}, Try{static_cast<std::size_t>(-1), fi_mr_key(to.get())},
        Try{0, fi_mr_key(to.get()) + 1}, Try{0, fi_mr_key(local.get())}, Try{0, gone_key}}) {
    fi_context2 context{};
    pair.at_a.clear();
    ASSERT_EQ(fi_writedata(pair.a.endpoint.get(), sent.data(), 100, fi_mr_desc(from.get()), 1,
                           pair.to_b, address_of(got.data()) + offset, key, &context),
              0);
    ASSERT_TRUE(pair.run([&] { return !pair.at_a.empty(); }));
    EXPECT_TRUE(pair.at_a[0].failed);
    EXPECT_EQ(pair.at_a[0].entry.op_context, &context);
    EXPECT_EQ(pair.at_a[0].entry.err, FI_EINVAL);
    EXPECT_TRUE(pair.at_a[0].text.starts_with("Remote memory registration"));
  }
  EXPECT_TRUE(pair.at_b.empty());
  EXPECT_EQ(std::accumulate(got.begin(), got.end(), 0), 0);
}

TEST_P(BothFabrics, FailSendsFromDeregisteredMemory) {
  Pair pair(make_hints(GetParam()).get());
  std::vector<std::uint8_t> sent(100);
  Region half = pair.a.reg(sent.data(), 50), closed = pair.a.reg(sent.data(), 100);
  void* const closed_descriptor = fi_mr_desc(closed.get());
  closed.reset();
  for (void* descriptor : {fi_mr_desc(half.get()), closed_descriptor}) {
    fi_context2 context{};
    pair.at_a.clear();
    ASSERT_EQ(fi_send(pair.a.endpoint.get(), sent.data(), 51, descriptor, pair.to_b, &context), 0);
    ASSERT_TRUE(pair.run([&] { return !pair.at_a.empty(); }));
    EXPECT_TRUE(pair.at_a[0].failed);
    EXPECT_EQ(pair.at_a[0].entry.prov_errno, 5);
    EXPECT_TRUE(pair.at_a[0].text.starts_with("Local memory registration"));
  }
}

TEST_F(EfaProvider, DirectFailsReusedContextsAndUnknownPeers) {
  Pair pair(make_hints("efa-direct").get());
  std::array<std::uint8_t, 8> bytes{};
  const Region from = pair.a.reg(bytes.data(), 8), to = pair.b.reg(bytes.data(), 8);
  fi_context2 shared{};
  for (int i = 0; i < 2; ++i)
    ASSERT_EQ(fi_write(pair.a.endpoint.get(), bytes.data(), 8, fi_mr_desc(from.get()), pair.to_b,
                       address_of(bytes.data()), fi_mr_key(to.get()), &shared),
              0);
  ASSERT_TRUE(pair.run([&] { return pair.at_a.size() == 2; }));
  EXPECT_NE(pair.at_a[0].failed, pair.at_a[1].failed);

  PlainEndpoint stranger(make_hints("efa-direct").get());
  const fi_addr_t to_b = stranger.insert(pair.b.name());
  const Region own = stranger.reg(bytes.data(), 8);
  fi_context2 context{};
  ASSERT_EQ(fi_write(stranger.endpoint.get(), bytes.data(), 8, fi_mr_desc(own.get()), to_b,
                     address_of(bytes.data()), fi_mr_key(to.get()), &context),
            0);
  std::optional<Event> event;
  ASSERT_TRUE(pair.run([&] { return (event = stranger.poll()).has_value(); }));
  EXPECT_TRUE(event->failed);
  EXPECT_EQ(event->entry.err, FI_ENOTCONN);
}

TEST_P(BothFabrics, LoseCompletionsThatTheQueueCannotHold) {
  PlainEndpoint b(make_hints(GetParam()).get()), a(make_hints(GetParam()).get(), 8);
  const fi_addr_t to_b = a.insert(b.name());
  b.insert(a.name());
  std::array<std::uint8_t, 8> bytes{}, window{};
  const Region from = a.reg(bytes.data(), 8), to = b.reg(window.data(), 8);
  std::array<fi_context2, 20> contexts{};
  for (fi_context2& context : contexts)
    ASSERT_EQ(fi_write(a.endpoint.get(), bytes.data(), 8, fi_mr_desc(from.get()), to_b,
                       address_of(window.data()), fi_mr_key(to.get()), &context),
              0);
  if (direct()) {
    std::this_thread::sleep_for(milliseconds(100));  // the hardware needs no polling
  } else {
    fi_cq_data_entry none{};  // reads no entry, but makes progress, so that all messages leave
    EXPECT_EQ(fi_cq_read(a.queue.get(), &none, 0), -FI_EAGAIN);
    for (const auto end = Clock::now() + milliseconds(30); Clock::now() < end;) b.poll();
  }
  int read = 0;
  for (const auto end = Clock::now() + milliseconds(30); Clock::now() < end;)
    if (a.poll()) ++read;
  EXPECT_EQ(read, 8);
  EXPECT_EQ(a.status, -FI_EOVERRUN);
}

TEST_P(BothFabrics, WaitForAReceiverThatIsNotReady) {
  Pair pair(make_hints(GetParam()).get());
  std::array<std::uint8_t, 8> bytes{42}, got{};
  const Region from = pair.a.reg(bytes.data(), 8), to = pair.b.reg(got.data(), 8);
  fi_context2 sending{}, receiving{};
  ASSERT_EQ(
      fi_send(pair.a.endpoint.get(), bytes.data(), 8, fi_mr_desc(from.get()), pair.to_b, &sending),
      0);
  pair.run_for(milliseconds(50));
  EXPECT_TRUE(pair.at_a.empty());
  ASSERT_EQ(fi_recv(pair.b.endpoint.get(), got.data(), 4, fi_mr_desc(to.get()), FI_ADDR_UNSPEC,
                    &receiving),
            0);
  ASSERT_TRUE(pair.run([&] { return !pair.at_a.empty() && !pair.at_b.empty(); }));
  // The receive was also too small. Both sides learn of it.
  EXPECT_TRUE(pair.at_a[0].failed && pair.at_b[0].failed);
  EXPECT_EQ(pair.at_a[0].entry.err, FI_EMSGSIZE);
  EXPECT_EQ(pair.at_b[0].entry.err, FI_ETRUNC);
  EXPECT_EQ(pair.at_b[0].entry.olen, 4u);
}

// The order in which 64 messages, or the immediate data of 64 writes, arrive.
std::vector<std::uint64_t> order_of(const fi_info* hints, bool writes) {
  Pair pair(hints);
  std::array<std::uint64_t, 64> sent{}, got{};
  std::iota(sent.begin(), sent.end(), 0);
  const Region from = pair.a.reg(sent.data(), sizeof sent), to = pair.b.reg(got.data(), sizeof got);
  std::vector<fi_context2> contexts(128);
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(fi_recv(pair.b.endpoint.get(), &got[i], 8, fi_mr_desc(to.get()), FI_ADDR_UNSPEC,
                      &contexts[64 + i]),
              0);
    if (writes)
      EXPECT_EQ(fi_writedata(pair.a.endpoint.get(), &sent[i], 8, fi_mr_desc(from.get()), i,
                             pair.to_b, address_of(&got[i]), fi_mr_key(to.get()), &contexts[i]),
                0);
    else
      EXPECT_EQ(fi_senddata(pair.a.endpoint.get(), &sent[i], 8, fi_mr_desc(from.get()), i,
                            pair.to_b, &contexts[i]),
                0);
  }
  EXPECT_TRUE(pair.run([&] { return pair.at_b.size() == 64 && pair.at_a.size() == 64; }));
  std::vector<std::uint64_t> order;
  for (const Event& event : pair.at_b) order.push_back(event.entry.data);
  return order;
}

std::vector<std::uint64_t> sorted(std::vector<std::uint64_t> values) {
  std::ranges::sort(values);
  return values;
}

TEST_P(BothFabrics, DeliverInAnOrderThatTheSeedChooses) {
  std::vector<std::uint64_t> as_sent(64);
  std::iota(as_sent.begin(), as_sent.end(), 0);
  const Info hints = make_hints(GetParam());
  for (const bool writes : {false, true}) {
    variables_.set("SHOAL_TEST_EFA_SEED", "1");
    const auto one = order_of(hints.get(), writes);
    variables_.set("SHOAL_TEST_EFA_SEED", "2");
    const auto two = order_of(hints.get(), writes);
    EXPECT_EQ(sorted(one), as_sent);
    EXPECT_EQ(sorted(two), as_sent);
    EXPECT_NE(one, as_sent);
    EXPECT_NE(one, two);
  }
}

TEST_F(EfaProvider, KeepsSendAfterSendOrderOnRequest) {
  const Info hints = make_hints("efa");
  hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
  variables_.set("SHOAL_TEST_EFA_DELAY_US", "2000");
  const auto order = order_of(hints.get(), false);
  EXPECT_TRUE(std::ranges::is_sorted(order));
  EXPECT_FALSE(std::ranges::is_sorted(order_of(hints.get(), true)));  // writes have no order
}

TEST_P(BothFabrics, ResendLostPackets) {
  variables_.set("SHOAL_TEST_EFA_LOSS", "100");
  variables_.set("SHOAL_TEST_EFA_DELAY_US", "200");
  Pair pair(make_hints(GetParam()).get());
  const auto sent = pattern((2 << 20) + 1);
  std::vector<std::uint8_t> got(sent.size());
  const Region from = pair.a.reg(sent.data(), sent.size()), to = pair.b.reg(got.data(), got.size());
  std::array<fi_context2, 4> contexts{};
  const std::size_t part = sent.size() / 4 + 1;
  for (std::size_t i = 0; i < 4; ++i)
    ASSERT_EQ(
        fi_writedata(pair.a.endpoint.get(), sent.data() + i * part,
                     std::min(part, sent.size() - i * part), fi_mr_desc(from.get()), i, pair.to_b,
                     address_of(got.data() + i * part), fi_mr_key(to.get()), &contexts[i]),
        0);
  ASSERT_TRUE(pair.run([&] { return pair.at_a.size() == 4 && pair.at_b.size() == 4; }));
  EXPECT_EQ(sent, got);
}

TEST_P(BothFabrics, CompleteNothingOnceDeaf) {
  const shoal::testing::TemporaryDirectory directory;
  const std::string file = directory / "deaf";
  PlainEndpoint a(make_hints(GetParam()).get());
  variables_.set("SHOAL_TEST_EFA_DEAF", file);
  PlainEndpoint b(make_hints(GetParam()).get());
  const fi_addr_t to_b = a.insert(b.name());
  b.insert(a.name());
  std::array<std::uint8_t, 8> bytes{}, window{};
  const Region from = a.reg(bytes.data(), 8), to = b.reg(window.data(), 8);
  std::array<fi_context2, 2> contexts{};
  const auto write = [&](fi_context2& context) {
    ASSERT_EQ(fi_writedata(a.endpoint.get(), bytes.data(), 8, fi_mr_desc(from.get()), 1, to_b,
                           address_of(window.data()), fi_mr_key(to.get()), &context),
              0);
  };
  const auto count_events = [&](milliseconds time) {
    int events = 0;
    for (const auto end = Clock::now() + time; Clock::now() < end;) {
      if (a.poll()) ++events;
      if (b.poll()) ++events;
    }
    return events;
  };
  write(contexts[0]);
  EXPECT_EQ(count_events(milliseconds(100)), 2);
  std::ofstream(file) << "";
  std::this_thread::sleep_for(milliseconds(10));
  write(contexts[1]);
  EXPECT_EQ(count_events(milliseconds(150)), 0);
}

TEST_P(BothFabrics, MakeProgressAsTheirAttributesSay) {
  PlainEndpoint a(make_hints(GetParam()).get()), b(make_hints(GetParam()).get());
  const fi_addr_t to_b = a.insert(b.name());
  b.insert(a.name());
  std::array<std::uint8_t, 8> bytes{1}, window{};
  const Region from = a.reg(bytes.data(), 8), to = b.reg(window.data(), 8);
  fi_context2 context{};
  ASSERT_EQ(fi_write(a.endpoint.get(), bytes.data(), 8, fi_mr_desc(from.get()), to_b,
                     address_of(window.data()), fi_mr_key(to.get()), &context),
            0);
  // Endpoint b does not poll.
  bool written = false;
  for (const auto end = Clock::now() + milliseconds(60); Clock::now() < end;)
    written |= a.poll().has_value();
  EXPECT_EQ(written, direct());
  for (const auto end = Clock::now() + milliseconds(60); Clock::now() < end && !written;) {
    b.poll();
    written |= a.poll().has_value();
  }
  EXPECT_TRUE(written);
}

// Without an emulated GPU, host memory registered as device memory stands in for a GPU's.
TEST_F(EfaProvider, ReachesRegisteredDeviceMemory) {
  Info hints = make_hints("efa");
  hints->caps |= FI_HMEM;
  hints->domain_attr->mr_mode |= FI_MR_HMEM;
  EXPECT_FALSE(ask(hints.get())) << "FI_HMEM is not offered";
  variables_.set("SHOAL_TEST_EFA_HMEM", "p2p");
  EXPECT_EQ(ask(hints.get())->domain_attr->mr_mode & (FI_MR_HMEM | FI_MR_LOCAL), FI_MR_HMEM);
  hints->domain_attr->mr_mode &= ~FI_MR_HMEM;
  EXPECT_FALSE(ask(hints.get())) << "the hints lack FI_MR_HMEM";
  hints->domain_attr->mr_mode |= FI_MR_HMEM;

  Pair pair(hints.get());
  std::vector<std::uint8_t> from = pattern(20'000), to(20'000);
  const iovec range{from.data(), from.size()};
  fi_mr_attr attributes{};
  attributes.mr_iov = &range;
  attributes.iov_count = 1;
  attributes.access = FI_SEND | FI_WRITE;
  attributes.iface = FI_HMEM_CUDA;
  attributes.device.cuda = 3;
  fid_mr* raw = nullptr;
  EXPECT_EQ(fi_mr_regattr(pair.a.domain.get(), &attributes, 0, &raw), -FI_EINVAL);
  attributes.iface = FI_HMEM_ZE;
  EXPECT_EQ(fi_mr_regattr(pair.a.domain.get(), &attributes, 0, &raw), -FI_ENOSYS);
  attributes.iface = FI_HMEM_CUDA;
  attributes.device.cuda = 0;
  ASSERT_EQ(fi_mr_regattr(pair.a.domain.get(), &attributes, 0, &raw), 0);
  const Region region(raw);
  const Region target = pair.b.reg(to.data(), to.size());
  fi_context2 context{};
  const auto write = [&](void* descriptor) {
    pair.at_a.clear();
    EXPECT_EQ(fi_write(pair.a.endpoint.get(), from.data(), from.size(), descriptor, pair.to_b,
                       address_of(to.data()), fi_mr_key(target.get()), &context),
              0);
    EXPECT_TRUE(pair.run([&] { return !pair.at_a.empty(); }));
    return !pair.at_a.empty() && !pair.at_a.front().failed;
  };
  EXPECT_FALSE(write(nullptr))
      << "device memory needs a descriptor even where host memory needs none";
  EXPECT_TRUE(write(fi_mr_desc(region.get())));
  EXPECT_EQ(to, from);

  Pair plain(make_hints("efa").get());
  EXPECT_EQ(fi_mr_regattr(plain.a.domain.get(), &attributes, 0, &raw), -FI_EOPNOTSUPP)
      << "the domain was opened without FI_HMEM";
}

}  // namespace
}  // namespace shoal::test
