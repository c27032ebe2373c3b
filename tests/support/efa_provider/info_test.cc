// Tests which fabrics and cards the provider offers, and for which hints.
#include <array>
#include <set>
#include <string>
#include <vector>

#include "plain_endpoint.h"
#include "support/efa.h"

namespace shoal::test {
namespace {

TEST_F(EfaProvider, HasTheAttributesOfEfa) {
  const Info hints = make_hints();
  const Info list = ask(hints.get());
  ASSERT_TRUE(list && list->next && !list->next->next);
  const fi_info& direct = *list;  // users that support it get it first
  const fi_info& plain = *list->next;
  EXPECT_STREQ(direct.fabric_attr->name, "efa-direct");
  EXPECT_STREQ(plain.fabric_attr->name, "efa");
  for (const fi_info* info : {&direct, &plain}) {
    EXPECT_STREQ(info->fabric_attr->prov_name, "efa");
    EXPECT_STREQ(info->domain_attr->name, "rdmap0s6-rdm");
    EXPECT_EQ(info->ep_attr->type, FI_EP_RDM);
    EXPECT_EQ(info->addr_format, static_cast<std::uint32_t>(FI_ADDR_EFA));
    EXPECT_EQ(info->src_addrlen, 32u);
    EXPECT_EQ(info->tx_attr->inject_size, 32u);
    EXPECT_EQ(info->tx_attr->iov_limit, 1u);
    EXPECT_EQ(info->tx_attr->msg_order, FI_ORDER_NONE);
    EXPECT_EQ(info->domain_attr->cq_data_size, 4u);
    EXPECT_EQ(info->domain_attr->av_type, FI_AV_TABLE);
  }
  constexpr int kRegistration = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  EXPECT_EQ(direct.domain_attr->mr_mode, kRegistration | FI_MR_LOCAL);
  EXPECT_EQ(plain.domain_attr->mr_mode, kRegistration);
  EXPECT_EQ(direct.domain_attr->data_progress, FI_PROGRESS_AUTO);
  EXPECT_EQ(plain.domain_attr->data_progress, FI_PROGRESS_MANUAL);
  EXPECT_EQ(direct.ep_attr->max_msg_size, 1u << 30);
  EXPECT_EQ(plain.ep_attr->max_msg_size, SIZE_MAX);

  const PlainEndpoint opened(make_hints("efa-direct").get());
  std::size_t limit = 0, length = sizeof limit;
  constexpr int kLargestMessage = 12;  // FI_OPT_MAX_MSG_SIZE in libfabric 2
  ASSERT_EQ(fi_getopt(&opened.endpoint->fid, FI_OPT_ENDPOINT, kLargestMessage, &limit, &length), 0);
  EXPECT_EQ(limit, 8760u);
  std::array<char, 80> text{};
  std::size_t room = text.size();
  fi_av_straddr(opened.addresses.get(), opened.name().data(), text.data(), &room);
  EXPECT_TRUE(std::string(text.data()).starts_with("fi_addr_efa://[::ffff:127.0.0.1]:"));
}

TEST_F(EfaProvider, RefusesTheHintsThatEfaRefuses) {
  const auto offers = [](auto&& change) {
    Info hints = make_hints();
    change(*hints);
    std::set<std::string> fabrics;
    const Info list = ask(hints.get());
    for (const fi_info* info = list.get(); info; info = info->next)
      fabrics.insert(info->fabric_attr->name);
    return fabrics;
  };
  using Names = std::set<std::string>;
  for (const std::uint64_t capability :
       {FI_TAGGED, FI_ATOMIC, FI_FENCE, FI_RMA_EVENT, FI_READ, FI_HMEM})
    EXPECT_EQ(offers([&](fi_info& hints) { hints.caps |= capability; }), Names{});
  EXPECT_EQ(offers([](fi_info& hints) { hints.ep_attr->type = FI_EP_DGRAM; }), Names{});
  EXPECT_EQ(offers([](fi_info& hints) { hints.tx_attr->inject_size = 33; }), Names{});
  EXPECT_EQ(offers([](fi_info& hints) { hints.tx_attr->iov_limit = 2; }), Names{});
  EXPECT_EQ(offers([](fi_info& hints) { hints.domain_attr->cq_data_size = 8; }), Names{});
  EXPECT_EQ(offers([](fi_info& hints) { hints.domain_attr->mr_mode = FI_MR_LOCAL; }), Names{});
  EXPECT_EQ(offers([](fi_info& hints) { hints.tx_attr->msg_order = FI_ORDER_STRICT; }), Names{});
  EXPECT_EQ(offers([](fi_info& hints) { hints.mode = 0; }), Names{"efa"});
  EXPECT_EQ(offers([](fi_info& hints) { hints.domain_attr->mr_mode &= ~FI_MR_LOCAL; }),
            Names{"efa"});
  EXPECT_EQ(offers([](fi_info& hints) { hints.tx_attr->msg_order = FI_ORDER_SAS; }), Names{"efa"});
  EXPECT_EQ(offers([](fi_info& hints) { hints.ep_attr->max_msg_size = std::size_t{2} << 30; }),
            Names{"efa"});
  EXPECT_EQ(offers([](fi_info& hints) { hints.domain_attr->data_progress = FI_PROGRESS_AUTO; }),
            Names{"efa-direct"});
}

TEST_F(EfaProvider, OffersOnlyTheRequestedFabric) {
  variables_.set("SHOAL_TEST_EFA_FABRIC", "efa");
  const Info list = ask(make_hints().get());
  ASSERT_TRUE(list);
  EXPECT_STREQ(list->fabric_attr->name, "efa");
  EXPECT_FALSE(list->next);
  EXPECT_FALSE(ask(make_hints("efa-direct").get()));
}

TEST_F(EfaProvider, HasACardForEachInterfaceGiven) {
  use_efa_provider("lo,lo,lo");
  const Info hints = make_hints("efa");
  const Info list = ask(hints.get());
  std::vector<std::string> names;
  for (const fi_info* info = list.get(); info; info = info->next)
    names.emplace_back(info->domain_attr->name);
  EXPECT_EQ(names, (std::vector<std::string>{"rdmap0s6-rdm", "rdmap1s6-rdm", "rdmap2s6-rdm"}));
  EXPECT_TRUE(ask(hints.get(), "127.0.0.1", FI_SOURCE));
  EXPECT_FALSE(ask(hints.get(), "192.0.2.77", FI_SOURCE));
  EXPECT_EQ(ask(hints.get(), "192.0.2.77")->dest_addrlen, 32u);
}

}  // namespace
}  // namespace shoal::test
