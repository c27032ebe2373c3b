// Owners of libfabric's objects. Declare members in order of creation, so that they close in the
// reverse order: memory regions and endpoint, queues and addresses, domain, fabric, info.
#pragma once

#include <memory>
#include <string>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "shoal/collectives/transport/fabric/library.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::fabric {

struct CloseFid {
  template <typename Object>
  void operator()(Object* object) const noexcept {
    // A failure leaks the object; a destructor cannot handle it.
    fi_close(&object->fid);
  }
};
struct FreeInfo {
  void operator()(fi_info* info) const noexcept { library().freeinfo(info); }
};

using FiInfo = std::unique_ptr<fi_info, FreeInfo>;
using FiFabric = std::unique_ptr<fid_fabric, CloseFid>;
using FiDomain = std::unique_ptr<fid_domain, CloseFid>;
using FiQueue = std::unique_ptr<fid_cq, CloseFid>;
using FiAddresses = std::unique_ptr<fid_av, CloseFid>;
using FiEndpoint = std::unique_ptr<fid_ep, CloseFid>;
using FiMemory = std::unique_ptr<fid_mr, CloseFid>;

// Throws io unless `result` is 0 (libfabric returns negative errors).
inline void check_fabric(long result, const std::string& provider, const char* call) {
  if (result != 0)
    throw_error(ErrorCode::io, "{}: {} failed: {}", provider, call,
                library().strerror(static_cast<int>(result < 0 ? -result : result)));
}

// open<FiQueue>(provider, "fi_cq_open", [&](fid_cq** cq) { return fi_cq_open(..., cq, nullptr); })
template <typename Owner, typename Open>
Owner open_fabric(const std::string& provider, const char* call, Open&& open) {
  typename Owner::pointer raw = nullptr;
  check_fabric(open(&raw), provider, call);
  return Owner(raw);
}

}  // namespace shoal::collectives::fabric
