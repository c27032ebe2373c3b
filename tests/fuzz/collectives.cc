// Parsers of collectives.
#include <array>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "fuzz/frame.h"
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>

#include "shoal/collectives/diagnosis/diagnose.h"
#include "shoal/collectives/select/algorithm_selector.h"
#include "shoal/collectives/select/rule.h"
#include "shoal/collectives/transport/control_connection.h"
#include "shoal/collectives/transport/fabric/cards.h"
#include "shoal/collectives/transport/fabric/rail_choice.h"
#include "shoal/collectives/transport/fabric/socket_lane.h"
#include "shoal/collectives/transport/host_identity.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/descriptor.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/rendezvous/cards.h"

namespace shoal::fuzz {
namespace {

using namespace collectives;

FUZZ(selection_rules, "collectives/select/rule.cc collectives/select/algorithm_selector.cc") {
  const std::vector<Rule> rules = parse_rules(input.rest(), "f");
  std::string text;
  for (const Rule& rule : rules) (text += to_string(rule)) += '\n';
  expect(parse_rules(text, "written") == rules, "what is written reads the same");
  AlgorithmSelector selector, again;
  selector.add(input.rest(), "option");
  again.add(selector.print(), "written");
  (void)selector.borders();
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{4096}, std::int64_t{1} << 30})
    (void)selector.select({.bytes = bytes, .ranks = 4, .nodes = 2},
                          candidates(Operation::all_reduce));
}

// One dump a part.
FUZZ(flight_dumps, "collectives/diagnosis/diagnose.cc") {
  std::vector<FlightDump> dumps;
  while (!input.rest().empty())
    dumps.push_back(parse_flight_dump(parse_json(input.part(), "f"), "f"));
  for (const GroupDiagnosis& diagnosis : diagnose(dumps))
    expect(!diagnosis.summary.empty() && diagnosis.summary.find('\n') == std::string::npos,
           "a diagnosis is one line");
}

FUZZ(control_frames, "collectives/transport/control_connection.cc") {
  namespace control = transport::control;
  std::array<int, 2> ends{};
  expect(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0,
         "a pair of sockets");
  const Descriptor peer(ends[0]);
  control::Connection connection;
  connection.fd = transport::FileDescriptor(ends[1]);
  // The first part was read ahead during the handshake.
  connection.in = input.part();
  const std::size_t ahead = connection.in.size();
  (void)::send(peer.get(), input.rest().data(), input.rest().size(), MSG_DONTWAIT);
  std::deque<control::Message> messages;
  (void)connection.receive(messages);
  std::size_t bytes = 0;
  for (const control::Message& message : messages) {
    expect(message.text.size() <= control::kMostText, "a text is short");
    bytes += message.bytes().size();
  }
  expect(bytes <= ahead + input.rest().size(), "messages are what came");
}

FUZZ(host_card, "collectives/transport/host_identity.cc") {
  (void)read_card(1, "host", input.rest(), [](std::string_view text) {
    CardFields card(text, '\n');
    const auto identity = transport::read_identity(card);
    card.end();
    CardFields same(text, '\n');
    expect(transport::to_card(identity) == transport::to_card(transport::read_identity(same)),
           "a card reads the same twice");
    return identity;
  });
}

FUZZ(fabric_cards,
     "collectives/transport/fabric/cards.cc collectives/transport/fabric/rail_choice.cc") {
  const int kind = input.choice(3);
  if (kind == 2) {
    (void)fabric::parse_interface_filter(input.rest()).admits({"eth0", "10.0.0.0"});
    return;
  }
  const std::string written = read_card(1, "fabric", input.rest(), [&](std::string_view text) {
    const nlohmann::json card = parse_json(text, "it");
    return kind == 0 ? fabric::to_card(fabric::parse_survey(card, 8)).dump()
                     : fabric::to_card(fabric::parse_opened(card)).dump();
  });
  const nlohmann::json card = parse_json(written, "it");
  expect((kind == 0 ? fabric::to_card(fabric::parse_survey(card, 8))
                    : fabric::to_card(fabric::parse_opened(card)))
                 .dump() == written,
         "a written card reads the same");
}

// The bytes of a connection. '1': after a hello that is right.
FUZZ(lane_frames, "collectives/transport/fabric/socket_lane.cc") {
  constexpr std::uint32_t kMagic = 0x1234;
  constexpr std::size_t kLargest = 256;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  fabric::SocketLane lane(std::string(reinterpret_cast<const char*>(&address), sizeof address), 0,
                          2, kLargest);
  lane.start({"", ""}, kMagic);
  std::string bytes;
  if (input.choice(2) == 1)
    for (const std::uint32_t word : {kMagic, std::uint32_t{1}})
      bytes.append(reinterpret_cast<const char*>(&word), sizeof word);
  bytes += input.rest();
  {
    const Descriptor peer(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    expect(::connect(peer.get(), reinterpret_cast<const sockaddr*>(lane.address().data()),
                     static_cast<socklen_t>(lane.address().size())) == 0,
           "the lane accepts a connection");
    (void)::send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  std::size_t came = 0;
  for (int i = 0; i < 6; ++i) {
    lane.look_closely();
    (void)lane.poll(
        [&](std::span<const std::byte> message) {
          expect(message.size() <= kLargest, "a message is not longer than the largest");
          came += message.size() + 4;
        },
        [](int) { return true; });
  }
  expect(came <= bytes.size(), "messages are what came");
  (void)lane.take_losses();
}

}  // namespace
}  // namespace shoal::fuzz
