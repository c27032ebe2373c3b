// A completion queue with a fixed number of entries, as in hardware. Completions that arrive when
// it is full are lost, and the queue is unusable afterwards (fi_cq(3)). A user must post no more
// operations than it holds, or read it in time.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include <rdma/fi_eq.h>

namespace shoal::test::efa {

class Endpoint;
struct Domain;

struct Completed {
  fi_cq_err_entry entry{};  // a success uses only the first six fields
  fi_addr_t source = FI_ADDR_NOTAVAIL;
  bool failed = false;
};

struct Queue : fid_cq {
  Domain* domain = nullptr;
  std::size_t size = 0;
  fi_cq_format format = FI_CQ_FORMAT_CONTEXT;
  std::deque<Completed> entries;
  bool overrun = false;
  std::vector<Endpoint*> endpoints;  // enabled endpoints; reading the queue makes them progress

  void push(const Completed& completed);
};

int open_queue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** made, void* context);

}  // namespace shoal::test::efa
