#include "info.h"

#include <cstdlib>
#include <cstring>
#include <limits>

#include "card.h"
#include "options.h"
#include "wire.h"

namespace shoal::test::efa {
namespace {

constexpr std::uint64_t kSending = FI_SEND | FI_WRITE, kReceiving = FI_RECV | FI_REMOTE_WRITE;
constexpr std::uint64_t kDomainCaps = FI_LOCAL_COMM | FI_REMOTE_COMM;
constexpr std::uint64_t kCaps = FI_MSG | FI_RMA | kSending | kReceiving | FI_SOURCE | kDomainCaps;
constexpr std::uint64_t kTransmitFlags =
    FI_INJECT | FI_COMPLETION | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;
constexpr int kRegistration = FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;

struct FreeInfo {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

// Describes one card as one fabric, before the hints are applied. Null if memory is exhausted.
Info make_info(const Card& card, bool direct) {
  Info info(fi_allocinfo());
  if (!info) return nullptr;
  info->caps = kCaps;
  info->mode = direct ? FI_CONTEXT2 : 0;
  info->addr_format = FI_ADDR_EFA;
  const Address gid = card.gid();
  info->src_addr = std::malloc(sizeof gid);
  if (!info->src_addr) return nullptr;
  std::memcpy(info->src_addr, &gid, sizeof gid);
  info->src_addrlen = sizeof gid;

  fi_tx_attr& transmit = *info->tx_attr;
  transmit.caps = FI_MSG | FI_RMA | kSending;
  transmit.mode = info->mode;
  transmit.op_flags = FI_COMPLETION | FI_TRANSMIT_COMPLETE;
  transmit.inject_size = kInjectBytes;
  transmit.size = kTransmitQueue;
  transmit.iov_limit = transmit.rma_iov_limit = 1;
  fi_rx_attr& receive = *info->rx_attr;
  receive.caps = FI_MSG | FI_RMA | kReceiving | FI_SOURCE;
  receive.mode = info->mode;
  receive.op_flags = FI_COMPLETION;
  receive.size = kReceiveQueue;
  receive.iov_limit = 1;

  fi_ep_attr& endpoint = *info->ep_attr;
  endpoint.type = FI_EP_RDM;
  endpoint.protocol = FI_PROTO_EFA;
  endpoint.protocol_version = direct ? 1 : 4;
  endpoint.max_msg_size = direct ? kLargestDirectWrite : std::numeric_limits<std::size_t>::max();
  endpoint.tx_ctx_cnt = endpoint.rx_ctx_cnt = 1;

  fi_domain_attr& domain = *info->domain_attr;
  domain.name = ::strdup(card.domain.c_str());
  domain.threading = FI_THREAD_SAFE;
  domain.control_progress = domain.data_progress = direct ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL;
  domain.resource_mgmt = FI_RM_ENABLED;  // senders wait for receivers; queues can overrun
  domain.av_type = FI_AV_TABLE;
  domain.mr_mode = kRegistration | (direct ? FI_MR_LOCAL : 0);
  domain.mr_key_size = sizeof(std::uint32_t);
  domain.cq_data_size = sizeof(std::uint32_t);
  domain.cq_cnt = domain.ep_cnt = domain.tx_ctx_cnt = domain.rx_ctx_cnt = 256;
  domain.max_ep_tx_ctx = domain.max_ep_rx_ctx = 1;
  domain.mr_iov_limit = 1;
  domain.mr_cnt = 65536;
  domain.caps = kDomainCaps;
  info->fabric_attr->name = ::strdup(direct ? kDirectFabricName : kFabricName);
  return domain.name && info->fabric_attr->name ? std::move(info) : nullptr;
}

bool differs(const char* wanted, const char* name) {
  return wanted && std::string_view(wanted) != name;
}

bool offers_less(std::uint64_t wanted, std::uint64_t offered) { return (wanted & ~offered) != 0; }

bool attributes_suit(const fi_info& hints, const fi_info& info) {
  const bool direct = is_direct(info);
  if (const fi_tx_attr* wanted = hints.tx_attr) {
    if (offers_less(wanted->caps, info.caps) || offers_less(wanted->op_flags, kTransmitFlags) ||
        offers_less(wanted->msg_order, direct ? FI_ORDER_NONE : FI_ORDER_SAS) ||
        wanted->comp_order != FI_ORDER_NONE || wanted->inject_size > kInjectBytes ||
        wanted->size > kTransmitQueue || wanted->iov_limit > 1 || wanted->rma_iov_limit > 1)
      return false;
  }
  if (const fi_rx_attr* wanted = hints.rx_attr) {
    if (offers_less(wanted->caps, info.caps) ||
        offers_less(wanted->msg_order, direct ? FI_ORDER_NONE : FI_ORDER_SAS) ||
        wanted->comp_order != FI_ORDER_NONE || wanted->size > kReceiveQueue ||
        wanted->iov_limit > 1)
      return false;
  }
  if (const fi_ep_attr* wanted = hints.ep_attr) {
    if ((wanted->type != FI_EP_UNSPEC && wanted->type != FI_EP_RDM) ||
        (wanted->protocol != FI_PROTO_UNSPEC && wanted->protocol != FI_PROTO_EFA) ||
        wanted->max_msg_size > info.ep_attr->max_msg_size || wanted->tx_ctx_cnt > 1 ||
        wanted->rx_ctx_cnt > 1)
      return false;
  }
  return true;
}

bool domain_suits(const fi_info& hints, const fi_info& info) {
  const fi_domain_attr* wanted = hints.domain_attr;
  if (!wanted) return true;
  const fi_domain_attr& offered = *info.domain_attr;
  if (differs(wanted->name, offered.name) || wanted->cq_data_size > offered.cq_data_size ||
      offers_less(wanted->caps, kDomainCaps))
    return false;
  const auto too_idle = [](fi_progress asked, fi_progress given) {
    return asked == FI_PROGRESS_AUTO && given == FI_PROGRESS_MANUAL;
  };
  if (too_idle(wanted->control_progress, offered.control_progress) ||
      too_idle(wanted->data_progress, offered.data_progress))
    return false;
  // FI_MR_BASIC is the old name of our three modes. The user must support every mode that a
  // provider requires.
  const int ready_for = wanted->mr_mode | (wanted->mr_mode == FI_MR_BASIC ? kRegistration : 0);
  return (offered.mr_mode & ~ready_for) == 0;
}

bool suits(const fi_info& hints, const fi_info& info) {
  // Among the unsupported capabilities are FI_TAGGED, FI_FENCE, FI_RMA_EVENT and reads.
  const bool with_hmem = offered_hmem() != Hmem::none;
  if (offers_less(hints.caps, kCaps | (with_hmem ? FI_HMEM : 0))) return false;
  if ((hints.caps & FI_HMEM) != 0 &&
      !(hints.domain_attr && (hints.domain_attr->mr_mode & FI_MR_HMEM) != 0))
    return false;
  if ((info.mode & ~hints.mode) != 0) return false;
  if (hints.addr_format != FI_FORMAT_UNSPEC && hints.addr_format != FI_ADDR_EFA) return false;
  if (hints.fabric_attr && differs(hints.fabric_attr->name, info.fabric_attr->name)) return false;
  return attributes_suit(hints, info) && domain_suits(hints, info);
}

// Restricts the offer to the requested features.
void adapt(const fi_info& hints, fi_info& info) {
  if (hints.caps != 0) {
    info.caps = hints.caps | kDomainCaps;
    if ((hints.caps & FI_MSG) != 0 && (hints.caps & (FI_SEND | FI_RECV)) == 0)
      info.caps |= FI_SEND | FI_RECV;
    if ((hints.caps & FI_RMA) != 0 && (hints.caps & (FI_WRITE | FI_REMOTE_WRITE)) == 0)
      info.caps |= FI_WRITE | FI_REMOTE_WRITE;
    if ((hints.caps & FI_HMEM) != 0) info.domain_attr->mr_mode |= FI_MR_HMEM;
    info.tx_attr->caps &= info.caps;
    info.rx_attr->caps &= info.caps;
  }
  if (is_direct(info)) {
    // A write with data consumes a posted receive if its user asked for FI_RX_CQ_DATA.
    info.mode |= hints.mode & FI_RX_CQ_DATA;
    info.rx_attr->mode |= hints.mode & FI_RX_CQ_DATA;
    if ((info.caps & FI_RMA) == 0) info.ep_attr->max_msg_size = kLargestPacket;
  }
  if (hints.tx_attr) {
    info.tx_attr->msg_order = hints.tx_attr->msg_order;
    if (hints.tx_attr->size != 0) info.tx_attr->size = hints.tx_attr->size;
    if (hints.tx_attr->op_flags != 0) info.tx_attr->op_flags = hints.tx_attr->op_flags;
  }
  if (hints.rx_attr) {
    info.rx_attr->msg_order = hints.rx_attr->msg_order;
    if (hints.rx_attr->size != 0) info.rx_attr->size = hints.rx_attr->size;
  }
  if (hints.domain_attr && hints.domain_attr->threading != FI_THREAD_UNSPEC)
    info.domain_attr->threading = hints.domain_attr->threading;
  info.handle = hints.handle;
}

}  // namespace

int get_info(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
             const fi_info* hints, fi_info** info) {
  *info = nullptr;
  if (hints && FI_VERSION_LT(version, FI_VERSION(1, 5))) return -FI_ENODATA;
  std::optional<Address> place;
  if (node) {
    place = parse_node(node);
    if (!place) return -FI_ENODATA;
  }
  if (place && service) place->qpn = static_cast<std::uint16_t>(std::atoi(service));
  Info head;
  fi_info* tail = nullptr;
  // efa-direct comes first, as in libfabric, so that a user who supports it gets it.
  const std::string only = wanted_fabric();
  for (const bool direct : {true, false}) {
    if (!only.empty() && only != (direct ? kDirectFabricName : kFabricName)) continue;
    for (const Card& card : find_cards()) {
      if (place && (flags & FI_SOURCE) != 0 && place->gid != card.gid().gid) continue;
      Info one = make_info(card, direct);
      if (!one) return -FI_ENOMEM;
      if (hints && !suits(*hints, *one)) continue;
      if (hints) adapt(*hints, *one);
      if (place && (flags & FI_SOURCE) == 0) {
        one->dest_addr = std::malloc(sizeof(Address));
        if (!one->dest_addr) return -FI_ENOMEM;
        std::memcpy(one->dest_addr, &*place, sizeof(Address));
        one->dest_addrlen = sizeof(Address);
      }
      fi_info* const added = one.release();
      (tail ? tail->next : *info) = added;
      if (!tail) head.reset(added);
      tail = added;
    }
  }
  *info = head.release();
  return *info ? 0 : -FI_ENODATA;
}

}  // namespace shoal::test::efa
