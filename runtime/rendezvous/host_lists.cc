#include "shoal/runtime/rendezvous/host_lists.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal {
namespace {

constexpr std::size_t kMaxHosts = 65'536;
constexpr std::size_t kLongestName = 253;  // DNS limit
constexpr std::size_t kMostCharacters = std::size_t{4}
                                        << 20;  // of all hosts that a name expands to

[[noreturn]] void refuse(std::string_view list, std::string_view why) {
  throw_error(ErrorCode::invalid_argument, "host list '{}': {}", shortened(list), why);
}

[[noreturn]] void too_many(std::string_view list) {
  refuse(list, fmt::format("more than {} hosts", kMaxHosts));
}

std::int64_t number(std::string_view list, std::string_view text) {
  const auto value = parse_number<std::int64_t>(text);
  if (!value || *value < 0 || text.size() > 9)
    refuse(list, fmt::format("'{}' is not a number", shortened(text, 40)));
  return *value;
}

// "1-3,07" -> 1 2 3 07. Keeps the width of a range's first number.
std::vector<std::string> expand_bracket(std::string_view list, std::string_view inside) {
  std::vector<std::string> items;
  for (;;) {
    const auto comma = inside.find(',');
    const std::string_view item = inside.substr(0, comma);
    const auto dash = item.find('-');
    const std::string_view first = item.substr(0, dash);
    const std::int64_t low = number(list, first);
    const std::int64_t high = dash == item.npos ? low : number(list, item.substr(dash + 1));
    if (high < low) refuse(list, fmt::format("the range '{}' runs backwards", shortened(item)));
    if (high - low >= static_cast<std::int64_t>(kMaxHosts - items.size())) too_many(list);
    items.reserve(items.size() + static_cast<std::size_t>(high - low + 1));
    for (std::int64_t value = low; value <= high; ++value) {
      const std::string digits = std::to_string(value);
      items.push_back(std::string(first.size() - std::min(first.size(), digits.size()), '0') +
                      digits);
    }
    if (comma == inside.npos) return items;
    inside.remove_prefix(comma + 1);
  }
}

// Expands a name with any number of brackets to all combinations; the last bracket varies fastest.
void expand_name(std::string_view list, std::string_view name, std::vector<std::string>& hosts) {
  std::vector<std::string> partial{""};
  // What all names continue with. It waits for a bracket of several items, so that brackets of one
  // item do not cost a pass over the names each.
  std::string next;
  const auto check_length = [&] {
    const std::size_t length = partial[0].size() + next.size();
    if (length > kLongestName)
      refuse(list, fmt::format("a name of more than {} characters", kLongestName));
    if (length * partial.size() > kMostCharacters)
      refuse(list, fmt::format("names of more than {} characters together", kMostCharacters));
  };
  while (!name.empty()) {
    const auto open = name.find_first_of("[]");
    next += name.substr(0, open);
    check_length();
    if (open == name.npos) break;
    const auto close = name.find(']', open);
    if (name[open] == ']' || close == name.npos) refuse(list, "unbalanced brackets");
    const auto items = expand_bracket(list, name.substr(open + 1, close - open - 1));
    name.remove_prefix(close + 1);
    if (items.size() == 1) {
      next += items[0];
      continue;
    }
    if (partial.size() * items.size() + hosts.size() > kMaxHosts) too_many(list);
    std::vector<std::string> longer;
    longer.reserve(partial.size() * items.size());
    for (const std::string& text : partial)
      for (const std::string& item : items) longer.push_back(text + next + item);
    partial = std::move(longer);
    next.clear();
    check_length();
  }
  check_length();
  if (partial.size() == 1 && partial[0].empty() && next.empty()) refuse(list, "an empty name");
  for (std::string& text : partial) text += next;
  hosts.insert(hosts.end(), std::make_move_iterator(partial.begin()),
               std::make_move_iterator(partial.end()));
}

}  // namespace

std::vector<std::string> expand_host_list(std::string_view list) {
  std::vector<std::string> hosts;
  std::size_t start = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (depth < 0 || depth > 1) refuse(list, "unbalanced brackets");
    if (c == ',' && (depth == 0 || i == list.size())) {
      if (hosts.size() >= kMaxHosts) too_many(list);
      expand_name(list, list.substr(start, i - start), hosts);
      start = i + 1;
    }
  }
  return hosts;
}

std::vector<int> expand_tasks_per_node(std::string_view text) {
  std::vector<int> counts;
  const std::string_view whole = text;
  for (;;) {
    const auto comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    std::int64_t times = 1;
    if (const auto open = item.find("(x"); open != item.npos) {
      if (item.back() != ')') refuse(whole, "unbalanced brackets");
      times = number(whole, item.substr(open + 2, item.size() - open - 3));
      item = item.substr(0, open);
    }
    const auto count = static_cast<int>(number(whole, item));
    if (times + std::ssize(counts) > static_cast<std::int64_t>(kMaxHosts)) too_many(whole);
    counts.insert(counts.end(), static_cast<std::size_t>(times), count);
    if (comma == text.npos) return counts;
    text.remove_prefix(comma + 1);
  }
}

namespace {

// True if `holds(address)` for one of the addresses that `host` resolves to.
template <typename Condition>
bool has_address(const std::string& host, Condition holds) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host.c_str(), "0", &hints, &found) != 0) return false;
  bool held = false;
  for (const addrinfo* a = found; a && !held; a = a->ai_next) held = holds(*a);
  ::freeaddrinfo(found);
  return held;
}

bool is_on_loopback(const addrinfo& address) {
  if (address.ai_family == AF_INET6) {
    sockaddr_in6 six{};
    std::memcpy(&six, address.ai_addr, sizeof six);
    return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr);
  }
  sockaddr_in four{};
  std::memcpy(&four, address.ai_addr, sizeof four);
  return ntohl(four.sin_addr.s_addr) >> 24U == IN_LOOPBACKNET;
}

}  // namespace

bool is_local_address(const std::string& host) {
  return has_address(host, [](const addrinfo& address) {
    const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const bool local = ::bind(fd, address.ai_addr, address.ai_addrlen) == 0;
    ::close(fd);
    return local;
  });
}

bool is_own_on_network(const std::string& host) {
  return is_local_address(host) && !has_address(host, is_on_loopback);
}

}  // namespace shoal
