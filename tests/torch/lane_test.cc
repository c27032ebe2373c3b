// A Lane over Communicators that the test provides, which tell when they end.
#include "shoal/torch/lane.h"

#include <functional>
#include <memory>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "shoal/collectives/backend_communicator.h"
#include "shoal/collectives/communicator_options.h"

namespace shoal::pytorch {
namespace {

// Never sends or receives anything.
class Silent final : public collectives::BackendCommunicator {
 public:
  explicit Silent(std::function<void()> at_end) : at_end_(std::move(at_end)) {}
  ~Silent() override { at_end_(); }
  int rank() const override { return 0; }
  int size() const override { return 3; }
  std::string backend() const override { return "silent"; }
  MemoryResource& memory_resource() override { throw std::logic_error("no memory"); }
  collectives::CommunicatorStatistics statistics() const override { return {}; }
  void abort(std::string_view) override {}
  double deadline_seconds() const override { return 60; }

 private:
  class Pending final : public collectives::Work {
   public:
    bool test() override { return false; }
    void wait(Deadline) override {}
    double default_deadline_seconds() const override { return 60; }
  };
  collectives::WorkPtr submit(collectives::Call&&) override { return std::make_unique<Pending>(); }

  std::function<void()> at_end_;
};

// A Communicator may write to a message's memory until it has ended.
TEST(Lane, MemoryOfMessagesOutlivesTheirCommunicator) {
  auto receive = std::make_shared<Mailbox::Receive>();
  receive->into = at::zeros({4});
  const std::weak_ptr<Mailbox::Receive> watched = receive;
  bool ended = false;
  const auto lane =
      std::make_shared<Lane>(std::make_shared<Silent>([] {}), std::make_shared<Silent>([&] {
                               ended = true;
                               EXPECT_FALSE(watched.expired());
                             }));
  lane->call([&] { lane->mailbox().receive(std::move(receive)); });
  ASSERT_FALSE(watched.expired());
  lane->close(false);
  EXPECT_TRUE(ended);
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace shoal::pytorch
