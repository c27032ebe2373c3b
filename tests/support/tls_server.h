// TLS on loopback in front of a server that speaks none, with certificates made on the spot. Link
// shoal_test_tls.
#pragma once

#include <memory>
#include <string>

namespace shoal::test {

// Signed by itself: whoever trusts it trusts no other.
struct CertificateOptions {
  std::string host = "localhost";
  long begins = -3600, ends = 3600;  // seconds from now
};
struct Certificate {
  std::string pem, key;  // key: PEM too
};
Certificate make_certificate(const CertificateOptions& options = {});

// What comes, decrypted, goes to port `behind` of 127.0.0.1, and back, a thread a connection.
class TlsServer {
 public:
  TlsServer(const Certificate& certificate, int behind);
  ~TlsServer();
  TlsServer(const TlsServer&) = delete;
  TlsServer& operator=(const TlsServer&) = delete;

  std::string url() const;  // https://localhost:PORT
  int handshakes() const;   // that succeeded, so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shoal::test
