#include "shoal/runtime/rendezvous/threads.h"

#include <algorithm>
#include <string_view>

#include <sched.h>

#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal {
namespace {

// A rank's message to the others: "HOST|0110...|DEVICE:INODE DEVICE:INODE ", with the mask of its
// cores.
struct Answer {
  std::string_view host, mask;
  std::vector<std::string_view> groups;  // identities of the control groups with a quota
};

std::string own_answer(const std::string& host, const std::vector<CpuQuota>& quotas) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0)
    log::once(log::Level::warn, "affinity",
              "this host does not say which cores a rank may use: one thread a rank; SHOAL_THREADS "
              "sets another number");
  std::string text = host + "|";
  for (int core = 0; core < CPU_SETSIZE; ++core) text += CPU_ISSET(core, &mask) ? '1' : '0';
  text += "|";
  for (const CpuQuota& quota : quotas) text += quota.identity + " ";
  return text;
}

Answer read_answer(std::string_view text, int rank) {
  const auto last = text.rfind('|'), first = text.substr(0, last).rfind('|');
  Answer answer;
  if (last != text.npos && first != text.npos) {
    answer.host = text.substr(0, first);
    answer.mask = text.substr(first + 1, last - first - 1);
    text.remove_prefix(last + 1);
  }
  for (auto end = text.find(' '); end != text.npos; end = text.find(' ')) {
    answer.groups.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  if (answer.mask.size() != CPU_SETSIZE || answer.mask.find_first_not_of("01") != text.npos ||
      !text.empty())
    throw Error(ErrorCode::corrupt_data,
                fmt::format("rank {} sent a malformed list of the cores that it may use", rank),
                "start all ranks from the same build of Shoal")
        .with_peer(rank);
  return answer;
}

// One rank's equal share.
double share_of(double cores, std::ptrdiff_t ranks) {
  return cores / static_cast<double>(std::max<std::ptrdiff_t>(ranks, 1));
}

}  // namespace

int threads_of_rank(const World& world, Store& store, Deadline deadline,
                    const std::vector<CpuQuota>& quotas) {
  const auto wanted = env::get_integer(env::kThreads);
  if (world.size <= 1)
    return wanted > 0 ? static_cast<int>(wanted) : cores_within(affinity_cores(), quotas);
  const auto all = exchange(store, "__shoal/affinity", world.rank, world.size,
                            own_answer(world.host, quotas), deadline);
  // Returns only after the exchange, since the other ranks wait for this rank's answer.
  if (wanted > 0) return static_cast<int>(wanted);
  std::vector<Answer> here;  // answers of the ranks on this host
  std::string_view mask;     // this rank's
  for (int rank = 0; rank < world.size; ++rank) {
    const Answer answer = read_answer(all[static_cast<std::size_t>(rank)], rank);
    if (rank == world.rank) mask = answer.mask;
    if (answer.host == world.host) here.push_back(answer);
  }
  double share = 0;
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core)
    if (mask[core] == '1')
      share += share_of(
          1, std::ranges::count_if(here, [core](const Answer& a) { return a.mask[core] == '1'; }));
  for (const CpuQuota& quota : quotas)
    share = std::min(share, share_of(quota.cores, std::ranges::count_if(here, [&](const Answer& a) {
                                       return std::ranges::count(a.groups, quota.identity) > 0;
                                     })));
  return std::max(1, static_cast<int>(share + 1e-9));
}

}  // namespace shoal
