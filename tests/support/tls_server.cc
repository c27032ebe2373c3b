#include "support/tls_server.h"

#include <array>
#include <atomic>
#include <csignal>
#include <stdexcept>

#include "support/loopback_listener.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace shoal::test {
namespace {

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
template <class T, auto Free>
using Owned = std::unique_ptr<T, Freed<Free>>;
using Key = Owned<EVP_PKEY, EVP_PKEY_free>;
using X509Ptr = Owned<X509, X509_free>;
using Memory = Owned<BIO, BIO_free_all>;

void check(bool good, const char* what) {
  if (!good) throw std::runtime_error(std::string("a certificate for a test: ") + what);
}

std::string text_of(BIO* memory) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory, &data);
  return {data, static_cast<std::size_t>(size)};
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

bool send_all(int socket, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t count = ::send(socket, data, size, MSG_NOSIGNAL);
    if (count <= 0) return false;
    data += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

// Copies bytes in both directions until one side has ended.
void relay(SSL* tls, int client, int server) {
  std::array<char, 16384> block{};
  for (;;) {
    std::array<pollfd, 2> ready = {{{client, POLLIN, 0}, {server, POLLIN, 0}}};
    if (SSL_pending(tls) == 0 && ::poll(ready.data(), ready.size(), -1) < 0) return;
    if (SSL_pending(tls) > 0 || ready[0].revents != 0) {
      const int count = SSL_read(tls, block.data(), static_cast<int>(block.size()));
      if (count <= 0 && SSL_get_error(tls, count) != SSL_ERROR_WANT_READ) return;
      if (count > 0 && !send_all(server, block.data(), static_cast<std::size_t>(count))) return;
    }
    if (ready[1].revents != 0) {
      const ssize_t count = ::recv(server, block.data(), block.size(), 0);
      if (count <= 0 || SSL_write(tls, block.data(), static_cast<int>(count)) <= 0) return;
    }
  }
}

}  // namespace

Certificate make_certificate(const CertificateOptions& options) {
  const Key key(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"));
  const X509Ptr made(X509_new());
  check(key && made, "OpenSSL could not make a key");
  X509* const certificate = made.get();
  check(X509_set_version(certificate, 2) == 1, "its version");
  check(ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1) == 1, "its number");
  check(X509_gmtime_adj(X509_getm_notBefore(certificate), options.begins) != nullptr &&
            X509_gmtime_adj(X509_getm_notAfter(certificate), options.ends) != nullptr,
        "its times");
  X509_NAME* const name = X509_get_subject_name(certificate);
  const auto* const host = reinterpret_cast<const unsigned char*>(options.host.c_str());
  check(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, host, -1, -1, 0) == 1 &&
            X509_set_issuer_name(certificate, name) == 1 &&
            X509_set_pubkey(certificate, key.get()) == 1,
        "its names");
  const Owned<X509_EXTENSION, X509_EXTENSION_free> names(
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, ("DNS:" + options.host).c_str()));
  check(names && X509_add_ext(certificate, names.get(), -1) == 1, "its host");
  check(X509_sign(certificate, key.get(), EVP_sha256()) > 0, "its signature");
  const Memory first(BIO_new(BIO_s_mem())), second(BIO_new(BIO_s_mem()));
  check(PEM_write_bio_X509(first.get(), certificate) == 1 &&
            PEM_write_bio_PrivateKey(second.get(), key.get(), nullptr, nullptr, 0, nullptr,
                                     nullptr) == 1,
        "its text");
  return {text_of(first.get()), text_of(second.get())};
}

struct TlsServer::State {
  State(const Certificate& certificate, int given)
      : behind(given), listener([this](int client) { serve(client); }) {
    const Memory chain(BIO_new_mem_buf(certificate.pem.data(), -1));
    const Memory secret(BIO_new_mem_buf(certificate.key.data(), -1));
    const X509Ptr own(PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr));
    const Key key(PEM_read_bio_PrivateKey(secret.get(), nullptr, nullptr, nullptr));
    check(own && key && SSL_CTX_use_certificate(context.get(), own.get()) == 1 &&
              SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1,
          "the server does not take it");
    SSL_CTX_clear_mode(context.get(),
                       SSL_MODE_AUTO_RETRY);  // the other direction may have data
  }

  void serve(int client) {
    // A client that has gone must not end the process, and OpenSSL writes without MSG_NOSIGNAL.
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = loopback(behind);
    const Owned<SSL, SSL_free> tls(SSL_new(context.get()));
    if (tls && SSL_set_fd(tls.get(), client) == 1 && SSL_accept(tls.get()) == 1 &&
        ::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      ++handshakes;
      relay(tls.get(), client, server);
    }
    ::close(server);
  }

  Owned<SSL_CTX, SSL_CTX_free> context{SSL_CTX_new(TLS_server_method())};
  int behind;
  std::atomic<int> handshakes{0};
  LoopbackListener listener;  // last: its threads use the members above
};

TlsServer::TlsServer(const Certificate& certificate, int behind)
    : state_(std::make_unique<State>(certificate, behind)) {}
TlsServer::~TlsServer() = default;

std::string TlsServer::url() const {
  return "https://localhost:" + std::to_string(state_->listener.port());
}
int TlsServer::handshakes() const { return state_->handshakes; }

}  // namespace shoal::test
