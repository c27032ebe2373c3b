// Plain libfabric calls, as its manual shows them, for the provider's own tests.
#pragma once

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/efa.h"
#include <gtest/gtest.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

namespace shoal::test {

struct CloseFid {
  template <typename Object>
  void operator()(Object* object) const {
    EXPECT_EQ(fi_close(&object->fid), 0);
  }
};
struct FreeInfo {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;
using Region = std::unique_ptr<fid_mr, CloseFid>;

// The hints of a user that supports everything EFA requires.
inline Info make_hints(const char* fabric = nullptr) {
  Info hints(fi_allocinfo());
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->fabric_attr->prov_name = ::strdup("efa");
  if (fabric) hints->fabric_attr->name = ::strdup(fabric);
  return hints;
}

// Returns null for -FI_ENODATA.
inline Info ask(const fi_info* hints, const char* node = nullptr, std::uint64_t flags = 0) {
  fi_info* found = nullptr;
  const int result = fi_getinfo(FI_VERSION(1, 14), node, nullptr, flags, hints, &found);
  EXPECT_TRUE(result == 0 || result == -FI_ENODATA) << fi_strerror(-result);
  return Info(result == 0 ? found : nullptr);
}

// A domain with one endpoint. Each `context` is an fi_context2 of this object.
class PlainEndpoint {
 public:
  explicit PlainEndpoint(const fi_info* hints, std::size_t queue_entries = 256,
                         std::uint64_t bind_flags = 0)
      : info(ask(hints)) {
    if (!info) throw std::runtime_error("no such endpoint");
    open(fabric, [&](auto** made) { return fi_fabric(info->fabric_attr, made, nullptr); });
    open(domain, [&](auto** made) { return fi_domain(fabric.get(), info.get(), made, nullptr); });
    fi_cq_attr attributes{};
    attributes.size = queue_entries;
    attributes.format = FI_CQ_FORMAT_DATA;
    open(queue, [&](auto** made) { return fi_cq_open(domain.get(), &attributes, made, nullptr); });
    fi_av_attr table{};
    table.type = FI_AV_TABLE;
    open(addresses, [&](auto** made) { return fi_av_open(domain.get(), &table, made, nullptr); });
    open(endpoint,
         [&](auto** made) { return fi_endpoint(domain.get(), info.get(), made, nullptr); });
    EXPECT_EQ(fi_ep_bind(endpoint.get(), &queue->fid, FI_TRANSMIT | FI_RECV | bind_flags), 0);
    EXPECT_EQ(fi_ep_bind(endpoint.get(), &addresses->fid, 0), 0);
    EXPECT_EQ(fi_enable(endpoint.get()), 0);
  }

  std::string name() const {
    std::string bytes(32, '\0');
    std::size_t length = bytes.size();
    EXPECT_EQ(fi_getname(&endpoint->fid, bytes.data(), &length), 0);
    EXPECT_EQ(length, bytes.size());
    return bytes;
  }
  fi_addr_t insert(const std::string& address) {
    fi_addr_t index = FI_ADDR_UNSPEC;
    EXPECT_EQ(fi_av_insert(addresses.get(), address.data(), 1, &index, 0, nullptr), 1);
    return index;
  }
  Region reg(const void* start, std::size_t bytes,
             std::uint64_t access = FI_SEND | FI_RECV | FI_WRITE | FI_REMOTE_WRITE) {
    Region region;
    open(region, [&](auto** made) {
      return fi_mr_reg(domain.get(), start, bytes, access, 0, 0, 0, made, nullptr);
    });
    return region;
  }
  // The next completion or error; nothing if the queue is empty.
  struct Event {
    fi_cq_err_entry entry{};
    bool failed = false;
    std::string text;
  };
  std::optional<Event> poll() {
    fi_cq_data_entry read{};
    Event event;
    status = fi_cq_read(queue.get(), &read, 1);
    if (status == 1) {
      std::memcpy(&event.entry, &read, sizeof read);
      return event;
    }
    if (status != -FI_EAVAIL) return std::nullopt;
    EXPECT_EQ(fi_cq_readerr(queue.get(), &event.entry, 0), 1);
    event.failed = true;
    event.text =
        fi_cq_strerror(queue.get(), event.entry.prov_errno, event.entry.err_data, nullptr, 0);
    return event;
  }

  Info info;
  std::unique_ptr<fid_fabric, CloseFid> fabric;
  std::unique_ptr<fid_domain, CloseFid> domain;
  std::unique_ptr<fid_cq, CloseFid> queue;
  std::unique_ptr<fid_av, CloseFid> addresses;
  std::unique_ptr<fid_ep, CloseFid> endpoint;
  ssize_t status = 0;  // returned by the last fi_cq_read

 private:
  template <typename Owner, typename Open>
  static void open(Owner& owner, Open&& call) {
    typename Owner::pointer made = nullptr;
    const int result = call(&made);
    if (result != 0) throw std::runtime_error(fi_strerror(-result));
    owner.reset(made);
  }
};

class Variables {  // environment variables, restored after one test
 public:
  void set(const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 1);
    names_.push_back(name);
  }
  ~Variables() {
    for (const char* name : names_) ::unsetenv(name);
  }

 private:
  std::vector<const char*> names_;
};

class EfaProvider : public ::testing::Test {
 protected:
  EfaProvider() { use_efa_provider(); }
  Variables variables_;
};

}  // namespace shoal::test
