// A completion queue as hardware has it: so many entries and no more. What comes when it is full is
// lost, and the queue good for nothing after it (fi_cq(3)): only who posts no more than it holds,
// or reads in time, keeps all.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include <rdma/fi_eq.h>

namespace shoal::test::efa {

class Endpoint;
struct Domain;

struct Completed {
  fi_cq_err_entry entry{};  // of a success its first six fields
  fi_addr_t source = FI_ADDR_NOTAVAIL;
  bool failed = false;
};

struct Queue : fid_cq {
  Domain* domain = nullptr;
  std::size_t size = 0;
  fi_cq_format format = FI_CQ_FORMAT_CONTEXT;
  std::deque<Completed> entries;
  bool overrun = false;
  std::vector<Endpoint*> endpoints;  // enabled ones, which reading makes progress

  void push(const Completed& completed);
};

int open_queue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** made, void* context);

}  // namespace shoal::test::efa
