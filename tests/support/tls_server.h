// A TLS server on loopback that decrypts for a plain server behind it, with certificates made at
// run time. Link shoal_test_tls.
#pragma once

#include <memory>
#include <string>

namespace shoal::test {

// A self-signed certificate: a client that trusts it trusts no other.
struct CertificateOptions {
  std::string host = "localhost";
  long begins = -3600, ends = 3600;  // seconds from now
};
struct Certificate {
  std::string pem, key;  // both in PEM
};
Certificate make_certificate(const CertificateOptions& options = {});

// Decrypts incoming bytes, sends them to port `behind` of 127.0.0.1, and returns the answers. Each
// connection has its own thread.
class TlsServer {
 public:
  TlsServer(const Certificate& certificate, int behind);
  ~TlsServer();
  TlsServer(const TlsServer&) = delete;
  TlsServer& operator=(const TlsServer&) = delete;

  std::string url() const;  // https://localhost:PORT
  int handshakes() const;   // successful ones so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shoal::test
