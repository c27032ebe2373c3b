#include "shoal/collectives/transport/host_identity.h"

#include <array>
#include <fstream>

#include <unistd.h>

#include "shoal/runtime/base/host_name.h"

namespace shoal::collectives::transport {
namespace {

std::string namespace_of(const char* path) {
  std::array<char, 64> target{};
  return ::readlink(path, target.data(), target.size() - 1) > 0 ? target.data() : "";
}

// The identifier of this boot of the machine. A container sees its machine's identifier.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);  // empty if the kernel does not provide it
  return text;
}

}  // namespace

HostIdentity own_identity() {
  return {.name = host_name(),
          .machine = boot_id(),
          .network = namespace_of("/proc/self/ns/net"),
          .processes = namespace_of("/proc/self/ns/pid"),
          .users = namespace_of("/proc/self/ns/user")};
}

std::string to_card(const HostIdentity& identity) {
  return fmt::format("{}\n{}\n{}\n{}\n{}", identity.name, identity.machine, identity.network,
                     identity.processes, identity.users);
}

HostIdentity read_identity(CardFields& card) {
  HostIdentity read;
  read.name = card_name(card.next("host"));
  read.machine = card_name_or_none(card.next("machine"));
  read.network = card_name_or_none(card.next("network namespace"));
  read.processes = card_name_or_none(card.next("process namespace"));
  read.users = card_name_or_none(card.next("user namespace"));
  return read;
}

bool differ(const std::string& a, const std::string& b) {
  return !a.empty() && !b.empty() && a != b;
}

bool share_loopback(const HostIdentity& a, const HostIdentity& b) {
  if (differ(a.machine, b.machine) || differ(a.network, b.network)) return false;
  const bool known =
      !a.machine.empty() && !b.machine.empty() && !a.network.empty() && !b.network.empty();
  return known || a.name == b.name;
}

void check_one_host(const std::vector<HostIdentity>& hosts, const std::vector<int>& ranks,
                    int own) {
  const auto self = static_cast<std::size_t>(own);
  const HostIdentity& here = hosts[self];
  for (std::size_t peer = 0; peer < hosts.size(); ++peer) {
    const HostIdentity& there = hosts[peer];
    std::string text, remedy;
    if (there.name != here.name) {
      text = fmt::format("rank {} is on '{}' and rank {} on '{}': they cannot share memory",
                         ranks[self], here.name, ranks[peer], there.name);
      remedy = "let SHOAL_HOST_NAME be one name on each machine, or unset it";
    } else if (differ(there.machine, here.machine)) {
      text = fmt::format(
          "ranks {} and {} both say that their host is '{}', but run on different machines",
          ranks[self], ranks[peer], here.name);
      remedy = "give each machine a host name of its own, or set SHOAL_HOST_NAME on each";
    } else if (differ(there.network, here.network)) {
      text = fmt::format(
          "ranks {} and {} both say that their host is '{}', but live in different network "
          "namespaces (containers), {} and {}: they cannot reach each other as ranks of one host "
          "do",
          ranks[self], ranks[peer], here.name, here.network, there.network);
      remedy =
          "give the containers one network (`--network host`), or each a host name of its own "
          "(`--hostname`, or SHOAL_HOST_NAME)";
    } else {
      continue;
    }
    throw Error(ErrorCode::unavailable, text, remedy)
        .at_rank(ranks[self])
        .with_peer(ranks[peer])
        .in_operation("make_communicator");
  }
}

std::string why_memory_is_apart(const std::vector<HostIdentity>& hosts,
                                const std::vector<int>& ranks) {
  const HostIdentity& first = hosts.front();
  for (std::size_t peer = 1; peer < hosts.size(); ++peer) {
    const bool processes = differ(first.processes, hosts[peer].processes);
    if (!processes && !differ(first.users, hosts[peer].users)) continue;
    return fmt::format(
        "ranks {} and {} live in different {} namespaces (containers); give the containers one "
        "({})",
        ranks[0], ranks[peer], processes ? "process" : "user",
        processes ? "`--pid host`, or `--pid container:NAME`" : "`--userns host`");
  }
  return {};
}

}  // namespace shoal::collectives::transport
