// Parsers of runtime/rendezvous.
#include <array>
#include <map>
#include <optional>
#include <string>

#include "fuzz/frame.h"
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/descriptor.h"
#include "shoal/runtime/io/text_lines.h"
#include "shoal/runtime/rendezvous/cards.h"
#include "shoal/runtime/rendezvous/job_token.h"
#include "shoal/runtime/rendezvous/tcp_protocol.h"
#include "shoal/runtime/rendezvous/tcp_server.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::fuzz {
namespace {

FUZZ(host_list, "runtime/rendezvous/host_lists.cc") {
  for (const std::string& host : expand_host_list(input.part()))
    expect(!host.empty() && host.size() <= 253, "a host has a name");
  for (const int tasks : expand_tasks_per_node(input.part())) expect(tasks >= 0, "tasks of a node");
}

// NAME=VALUE lines, then SageMaker's resourceconfig.json.
FUZZ(world, "runtime/rendezvous/world.cc") {
  std::map<std::string, std::string, std::less<>> variables;
  std::string_view line;
  for (TextLines lines(input.part()); lines.next(line);)
    if (const std::size_t name = line.find('='); name != line.npos)
      variables.emplace(line.substr(0, name), line.substr(name + 1));
  input.optional_file("input/config/resourceconfig.json");
  const World world = discover_world(
      [&](std::string_view name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      {.sagemaker_root = Input::folder()});
  expect(world.rank >= 0 && world.rank < world.size, "a rank is one of its world's");
  expect(world.local_rank >= 0 && world.local_rank < world.local_size, "and of its host's");
  expect(world.node >= 0 && world.node < world.nodes, "its host is one of the world's");
}

FUZZ(card, "runtime/rendezvous/cards.cc runtime/rendezvous/cards.h") {
  const char separator = input.choice(2) == 0 ? '\n' : ' ';
  const auto read = [&](std::string_view text) {
    CardFields card(text, separator);
    (void)card_name(card.next("host"));
    (void)card.number<int>("port", 1, 65535);
    (void)card.number<double>("seconds", 0, 1e9);
    (void)card_name_or_none(card.next("network"));
    if (!card.at_end()) (void)card.rest("rest");
    card.end();
    return true;
  };
  (void)read_card(3, "where it is", input.rest(), read);
}

FUZZ(job_token, "runtime/rendezvous/job_token.cc") {
  const int mode = input.choice(2);
  const std::string path = input.file("token", input.part());
  (void)::chmod(path.c_str(), mode == 0 ? 0600 : 0644);
  handshake::Server server(JobToken("secret"), "store");
  std::string hello(input.part());
  hello.resize(handshake::kHello);
  (void)server.challenge(hello);
  (void)server.rank();
  expect(!server.admits(input.rest()), "nobody without the secret is admitted");
  const handshake::Client client(JobToken("secret"), "store", 1);
  expect(!client.answer(input.rest()), "a server without the secret gets no proof");
  (void)JobToken::read(path);
}

// The bytes of one connection. '0': those of a stranger; '1': those after its handshake.
FUZZ(store_frames,
     "runtime/rendezvous/tcp_server.cc runtime/rendezvous/tcp_protocol.h "
     "runtime/rendezvous/store.cc") {
  std::string bytes;
  if (input.choice(2) == 1) {
    bytes = store::kClientGreeting;
    bytes.append(handshake::kHello + handshake::kProof, '\0');
  }
  bytes += input.rest();
  const TcpStoreServer server(0, "127.0.0.1");
  const Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(server.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  expect(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0,
         "the store accepts a connection");
  (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  (void)::shutdown(fd.get(), SHUT_WR);
  std::array<char, 4096> answers;
  while (::recv(fd.get(), answers.data(), answers.size(), 0) > 0) {
  }
}

}  // namespace
}  // namespace shoal::fuzz
