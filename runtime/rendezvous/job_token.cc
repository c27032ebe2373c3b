#include "shoal/runtime/rendezvous/job_token.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/descriptor.h"
#include "shoal/runtime/io/digest.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/rendezvous/tcp_protocol.h"

namespace shoal {
namespace {

constexpr std::size_t kDigits = 64;

// Each field has its length in front, so that no two lists of fields give the same text.
std::string proof_of(const JobToken& token, std::string_view side, std::string_view purpose,
                     std::string_view hello, std::string_view nonce) {
  std::string text;
  for (const std::string_view field : {side, purpose, hello, nonce}) store::put_string(text, field);
  return token.proof(text);
}

}  // namespace

JobToken JobToken::read(const std::string& path) {
  const Descriptor file(open_regular_file(path));
  struct stat status{};
  std::string text(kDigits + 2, '\0');  // a longer file shows itself
  const ssize_t count =
      ::fstat(file.get(), &status) == 0 ? ::read(file.get(), text.data(), text.size()) : -1;
  if (count < 0)
    throw_error(ErrorCode::io, "cannot read the job token in {}: {}", path, std::strerror(errno));
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("other users may read the job token in {}", path),
                fmt::format("chmod 600 {}", path));
  text.resize(static_cast<std::size_t>(count));
  if (text.ends_with('\n')) text.pop_back();
  const auto is_digit = [](unsigned char c) { return std::isxdigit(c) != 0; };
  if (text.size() != kDigits || !std::ranges::all_of(text, is_digit))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} holds no job token, which is {} hexadecimal digits", path, kDigits),
                "write one with `shoal token FILE`");
  return JobToken(std::move(text));
}

JobToken JobToken::of_environment() {
  const std::string path = env::get_string(env::kJobToken);
  return path.empty() ? JobToken() : read(path);
}

std::string JobToken::write_new(const std::string& path) {
  std::string text;
  for (const char byte : random_bytes(kDigits / 2))
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  text += '\n';
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  errno = file.get() < 0 ? errno : ENOSPC;  // the reason of a short write
  if (file.get() < 0 ||
      ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::fsync(file.get()) != 0)
    throw_error(ErrorCode::io, "cannot write a token to {}: {}", path, std::strerror(errno));
  return text;
}

std::string JobToken::proof(std::string_view text) const { return hmac_sha256(secret_, text); }

namespace handshake {
namespace {

std::string new_hello(int rank) {
  std::string hello = random_bytes(kNonce);
  store::put_integer(hello, static_cast<std::int32_t>(rank));
  return hello;
}

}  // namespace

Client::Client(const JobToken& token, std::string_view purpose, int rank)
    : token_(token), purpose_(purpose), hello_(new_hello(rank)) {}

std::string Client::hello() const { return hello_; }

std::optional<std::string> Client::answer(std::string_view challenge) const {
  if (challenge.size() != kChallenge) return std::nullopt;
  const std::string_view nonce = challenge.substr(0, kNonce);
  if (!equal_secrets(challenge.substr(kNonce), proof_of(token_, "server", purpose_, hello_, nonce)))
    return std::nullopt;
  return proof_of(token_, "client", purpose_, hello_, nonce);
}

Server::Server(const JobToken& token, std::string_view purpose)
    : token_(token), purpose_(purpose), nonce_(random_bytes(kNonce)) {}

std::string Server::challenge(std::string_view hello) {
  hello_ = hello;
  return nonce_ + proof_of(token_, "server", purpose_, hello_, nonce_);
}

bool Server::admits(std::string_view proof) const {
  return hello_.size() == kHello &&
         equal_secrets(proof, proof_of(token_, "client", purpose_, hello_, nonce_));
}

int Server::rank() const {
  return store::FieldReader(std::string_view(hello_).substr(kNonce)).integer<std::int32_t>();
}

}  // namespace handshake
}  // namespace shoal
