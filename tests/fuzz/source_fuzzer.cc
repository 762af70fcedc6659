// Any bytes, as what a server of weights answers, as the fields of an answer, and as a file of
// credentials: never a byte beyond what the caller gave room for or more text than it allows, and
// an answer counts only when it is whole and of the range that was asked for.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "model_files/source/body_digest.h"
#include "model_files/source/credentials_file.h"
#include "model_files/source/http_reader.h"
#include "model_files/source/http_transfer.h"
#include "tests/fuzz/fuzz_input.h"

namespace ems::model {
namespace {

using testing::FuzzInput;

// ---- A file of credentials.

void RunCredentials(FuzzInput* input) {
  const std::string name(input->TakeText(input->TakeUpTo(3)));
  const std::string text(AsText(input->TakeRest()));
  const auto found = ParseCredentials(text, "fuzz", name);
  if (!found.ok()) {
    EMS_CHECK(found.status().code() == StatusCode::kNotFound ||
              found.status().code() == StatusCode::kInvalidArgument);
    return;
  }
  EMS_CHECK(found->access_key.empty() == found->secret_key.empty());
  const auto check = [&](std::string_view value) {
    EMS_CHECK(value.find('\n') == std::string_view::npos);
    EMS_CHECK(value.empty() || text.find(value) != std::string::npos);
    EMS_CHECK(value.empty() || (value.front() != ' ' && value.back() != ' '));
  };
  check(found->access_key);
  check(found->secret_key);
  check(found->session_token);
  check(found->bearer_token);
  for (const std::string& host : found->hosts) {
    for (const char c : host) EMS_CHECK(c != ',' && c != '\n' && (c < 'A' || c > 'Z'));
  }
  // Another section, and what stands behind it, changes nothing.
  const auto again = ParseCredentials(text + "\n[ another one ]\nbearer_token = x", "fuzz", name);
  if (name != "another one") {
    EMS_CHECK(again.ok() && again->bearer_token == found->bearer_token);
    EMS_CHECK(again->access_key == found->access_key && again->hosts == found->hosts);
  }
}

// ---- The fields of an answer.

void RunHead(FuzzInput* input) {
  RemoteFile file;
  file.bytes = 1 + input->TakeUpTo(4095);
  file.tag = "\"tag\"";
  const uint64_t offset = input->TakeUpTo(file.bytes - 1);
  const uint64_t bytes = 1 + input->TakeUpTo(file.bytes - offset - 1);
  const auto how = input->Take<uint8_t>();
  HttpHead head;
  head.status = how % 4 == 0 ? 200 : how % 4 == 3 ? input->Take<uint16_t>() : 206;
  if ((how & 4) != 0) head.content_bytes = input->Take<uint16_t>() % 4097;
  if ((how & 8) != 0) head.content_bytes = bytes;
  head.etag = (how & 16) != 0 ? file.tag : std::string(input->TakeText(input->TakeUpTo(40)));
  const std::array<std::string*, 5> fields = {&head.content_encoding, &head.content_digest,
                                              &head.repr_digest, &head.content_md5,
                                              &head.last_modified};
  for (std::string* field : fields) *field = input->TakeText(input->TakeUpTo(80));
  head.content_range = input->TakeText(input->TakeUpTo(60));
  if ((how & 32) != 0)
    head.content_range = fmt::format("bytes {}-{}/{}", offset, offset + bytes - 1, file.bytes);
  if (const Status checked = CheckRangeHead(head, file, offset, bytes); checked.ok()) {
    EMS_CHECK(TagOf(head, file.bytes) == file.tag);
    EMS_CHECK(head.content_bytes.value_or(bytes) == bytes);
    EMS_CHECK(head.status == 206 || (head.status == 200 && bytes == file.bytes));
    EMS_CHECK(head.content_encoding.empty() || head.content_encoding == "identity");
  }
  const ConstBytes body = input->TakeRest();
  for (const bool whole : {false, true}) {
    if (const auto field = ContradictedField(head, body, whole))
      EMS_CHECK(HasChecksum(head, whole) && !field->empty());
    // Of what is not whole less is known.
    if (HasChecksum(head, false)) EMS_CHECK(HasChecksum(head, true));
  }
  if (const auto md5 = Md5OfTag(head.etag, head)) {
    EMS_CHECK(md5->size() == 32 && !head.encrypted);
    EMS_CHECK(md5->find_first_not_of("0123456789abcdef") == std::string::npos);
  }
}

// ---- A whole answer.

// Answers each connection's first request with the same bytes and hangs up. Threading: one thread
// (holder), and its own.
class AnsweringServer final {
 public:
  AnsweringServer() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in local{};
    local.sin_family = AF_INET;
    local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(local);
    auto* const address = reinterpret_cast<sockaddr*>(&local);
    EMS_CHECK(::bind(listener_, address, length) == 0 && ::listen(listener_, 16) == 0);
    EMS_CHECK(::getsockname(listener_, address, &length) == 0);
    url_ = fmt::format("http://127.0.0.1:{}/file", ntohs(local.sin_port));
    thread_ = Thread("answers", [this] { Run(); });
  }
  ~AnsweringServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.Join();
    ::close(listener_);
  }
  AnsweringServer(const AnsweringServer&) = delete;
  AnsweringServer& operator=(const AnsweringServer&) = delete;

  void SetAnswer(std::string answer) {
    auto now = answer_.Lock();
    *now = std::move(answer);
  }
  const std::string& url() const { return url_; }

 private:
  void Run() {
    while (true) {
      const int peer = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (peer < 0 && errno == EINTR) continue;  // libFuzzer's timer
      if (peer < 0) return;
      std::string request;
      std::array<char, 4096> buffer;
      while (request.find("\r\n\r\n") == std::string::npos) {
        const ssize_t got = ::recv(peer, buffer.data(), buffer.size(), 0);
        if (got <= 0) break;
        request.append(buffer.data(), static_cast<size_t>(got));
      }
      std::string answer;
      {
        auto now = answer_.Lock();
        answer = *now;
      }
      (void)!::send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
      ::close(peer);
    }
  }

  const int listener_;
  std::string url_;
  Guarded<std::string> answer_;
  Thread thread_;
};

void CheckHead(const HttpHead& head) {
  for (const std::string* field :
       {&head.etag, &head.last_modified, &head.content_range, &head.content_encoding,
        &head.content_digest, &head.repr_digest, &head.content_md5}) {
    EMS_CHECK(field->size() <= 4096 && field->find('\n') == std::string::npos);
  }
}

void RunAnswer(FuzzInput* input) {
  static AnsweringServer server;
  static HttpTransfer transfer({.connections_max = 1}, nullptr);
  const auto how = input->Take<uint8_t>();
  std::vector<std::byte> room((how & 1) != 0 ? input->TakeUpTo(600) : 0);
  const uint64_t text_bytes_max = input->TakeUpTo(600);
  const bool refuses = (how & 6) == 6;
  std::string answer((how & 8) != 0 ? "HTTP/1.1 200 OK\r\n" : "");
  answer += AsText(input->TakeRest());
  int asked = 0;
  const HttpRequest request{.method = (how & 16) != 0 ? "HEAD" : "GET",
                            .url = server.url(),
                            .into = room,
                            .text_bytes_max = text_bytes_max,
                            .accept = [&](const HttpHead& head) {
                              ++asked;
                              EMS_CHECK(head.status / 100 == 2);
                              CheckHead(head);
                              if (!refuses) return OkStatus();
                              return Error(StatusCode::kDataLoss, "refused");
                            }};
  server.SetAnswer(answer);
  const HttpOutcome outcome = transfer.Do(request, Deadline::After(std::chrono::seconds(5)));
  EMS_CHECK(outcome.failure != HttpFailure::kInternal, "{}", outcome.what);
  EMS_CHECK(outcome.failure != HttpFailure::kDeadline);
  CheckHead(outcome.head);
  EMS_CHECK(asked <= 1 && (outcome.failure == HttpFailure::kRefused) == (asked == 1 && refuses));
  EMS_CHECK(outcome.body_bytes <= room.size());
  const bool good = outcome.head.status / 100 == 2;
  EMS_CHECK(outcome.text.size() <= (good ? text_bytes_max : HttpTransfer::kErrorTextMax));
  EMS_CHECK(!good || room.empty() || outcome.text.empty());
  if (answer.find("hunked") != std::string::npos) return;
  // Without frames a body lies in the answer as it is, and is as long as the answer says.
  const ConstBytes body = std::span(room).first(outcome.body_bytes);
  EMS_CHECK(answer.find(AsText(body)) != std::string::npos);
  EMS_CHECK(answer.find(outcome.text) != std::string::npos);
  if (outcome.failure == HttpFailure::kNone && good && request.method == "GET")
    EMS_CHECK(asked == 1);
}

}  // namespace
}  // namespace ems::model

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ems::testing::FuzzInput input(data, size);
  switch (input.Take<uint8_t>() % 3) {
    case 0:
      ems::model::RunCredentials(&input);
      break;
    case 1:
      ems::model::RunHead(&input);
      break;
    default:
      ems::model::RunAnswer(&input);
  }
  return 0;
}
