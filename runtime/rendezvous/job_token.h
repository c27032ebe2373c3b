// The job's secret, and the handshake by which the two ends of a socket show each other that they
// have it. The secret itself never travels (docs/guides/security.md).
//
//   client                                       server
//   hello():  nonce, rank                  ->
//                                          <-    challenge():  nonce, proof
//   answer(): proof                        ->    admits()
//
// A proof is an HMAC-SHA256 under the secret. It covers the side, the purpose of the socket, the
// rank and both nonces, so a recorded handshake opens no other socket.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace shoal {

class JobToken {
 public:
  JobToken() = default;  // no secret: the handshake admits every process that follows the protocol
  explicit JobToken(std::string secret) : secret_(std::move(secret)) {}
  // Reads a file of 64 hexadecimal digits. Throws invalid_argument for other contents, or if other
  // users may read the file; not_found or io.
  static JobToken read(const std::string& path);
  // Reads SHOAL_JOB_TOKEN_FILE; no secret if it is not set.
  static JobToken of_environment();
  // Makes a secret of 256 random bits and writes it to a new file, which only its owner can read.
  // Returns the file's contents. Throws io, also if the file exists: a running job may use it.
  static std::string write_new(const std::string& path);

  bool is_secret() const { return !secret_.empty(); }
  // A token for sockets of one kind: it also depends on `more`, which the two ends share.
  JobToken with(std::string_view more) const { return JobToken(secret_ + std::string(more)); }
  std::string proof(std::string_view text) const;  // 32 bytes

 private:
  std::string secret_;
};

namespace handshake {

inline constexpr std::size_t kNonce = 32, kProof = 32;  // bytes
inline constexpr std::size_t kHello = kNonce + 4, kChallenge = kNonce + kProof;

class Client {
 public:
  // `purpose` is the kind of socket ("store"); it must be the server's. `rank` may be -1: unknown.
  Client(const JobToken& token, std::string_view purpose, int rank);
  std::string hello() const;  // kHello bytes
  // Returns the proof to send, or nullopt if the server does not have the token.
  std::optional<std::string> answer(std::string_view challenge) const;

 private:
  const JobToken token_;
  const std::string purpose_, hello_;
};

class Server {
 public:
  Server(const JobToken& token, std::string_view purpose);
  std::string challenge(std::string_view hello);  // `hello`: kHello bytes. Returns kChallenge bytes
  // Returns true if the client has the token. Call it once, after challenge().
  bool admits(std::string_view proof) const;
  int rank() const;  // the rank that the client claims, and that its proof covers

 private:
  const JobToken token_;
  const std::string purpose_, nonce_;
  std::string hello_;
};

}  // namespace handshake
}  // namespace shoal
