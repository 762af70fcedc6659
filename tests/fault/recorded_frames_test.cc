// What must hold for clients and servers of other versions, by frames that these have sent: those
// of the same wire version are understood and answered as they were, and one that cannot be read is
// refused, by a text that names both versions. recorded/README.md says how they were made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <deque>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/one_server_calls.h"
#include "tests/support/paths.h"
#include "tests/support/scripted_server.h"

namespace ems::testing {
namespace {

using ::testing::HasSubstr;

std::string ToHex(std::string_view bytes) {
  std::string hex;
  for (const char byte : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return hex;
}
std::string FromHex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}

// A frame as it was sent.
struct Recorded {
  wire::FrameHeader header;
  std::string rest;  // key and body

  static Recorded Of(std::string_view bytes) {
    EMS_CHECK(bytes.size() >= wire::kHeaderBytes);
    return {wire::ReadRaw<wire::FrameHeader>(AsBytes(bytes.substr(0, wire::kHeaderBytes))),
            std::string(bytes.substr(wire::kHeaderBytes))};
  }
  std::string bytes() const { return std::string(AsText(wire::RawBytes(header))) + rest; }
};

// What passed between the two, in its order, and what the calls returned.
struct Recording {
  std::vector<Recorded> requests, answers;
  std::vector<std::string> results;

  static Recording Load(const std::string& file) {
    Recording all;
    std::ifstream in(SourceDir() + "/tests/fault/recorded/" + file);
    std::string line;
    while (std::getline(in, line)) {
      if (line.starts_with("Q ")) all.requests.push_back(Recorded::Of(FromHex(line.substr(2))));
      if (line.starts_with("A ")) all.answers.push_back(Recorded::Of(FromHex(line.substr(2))));
      if (line.starts_with("R ")) all.results.push_back(line.substr(2));
    }
    return all;
  }
  void Save(const std::string& path) const {
    std::ofstream out(path);
    for (size_t i = 0; i < requests.size(); ++i)
      out << "Q " << ToHex(requests[i].bytes()) << "\nA " << ToHex(answers[i].bytes()) << "\n";
    for (const std::string& result : results) out << "R " << result << "\n";
  }
};

// A whole frame; nullopt when the peer has closed.
std::optional<Recorded> ReadFrame(WirePeer* peer) {
  const std::optional<std::string> head = peer->Receive(wire::kHeaderBytes);
  if (!head) return std::nullopt;
  Recorded frame = Recorded::Of(*head);
  const std::optional<std::string> rest =
      peer->Receive(frame.header.key_bytes + frame.header.body_bytes);
  if (!rest) return std::nullopt;
  frame.rest = *rest;
  return frame;
}

// Each kind of request that the SDK makes over TCP. What each returned, as text.
std::vector<std::string> CallAll(OneServerCalls* calls, NamespaceRef ns) {
  std::vector<std::string> results;
  const auto add = [&](std::string_view what, const std::vector<Status>& statuses) {
    std::string line(what);
    for (const Status& status : statuses) line += fmt::format(" {}", CodeName(status.code()));
    results.push_back(line);
  };
  const auto add_lengths = [&](std::string_view what, const std::vector<Result<uint64_t>>& lengths,
                               const std::vector<std::string>& values) {
    std::string line(what);
    for (size_t i = 0; i < lengths.size(); ++i) {
      line += lengths[i].ok() ? fmt::format(" {}", *lengths[i])
                              : fmt::format(" {}", CodeName(lengths[i].status().code()));
      if (lengths[i].ok() && i < values.size()) line += ":" + ToHex(values[i]);
    }
    results.push_back(line);
  };
  std::vector<std::string> values;
  add("put", calls->Put({"one"}, 1));
  add("put again", calls->Put({"one"}, 1, {.overwrite = false}));
  add("put another", calls->Put({"one"}, 2, {.overwrite = false}));
  add("multi_put", calls->Put({"two", "three"}, 3));
  add_lengths("get", calls->Get({"one"}, &values), values);
  add_lengths("miss", calls->Get({"none"}, &values), {});
  add_lengths("multi_get", calls->Get({"two", "none", "three"}, &values), values);
  add_lengths("get_range", calls->GetRange({"one"}, 3, 7, &values), values);
  add_lengths("multi_get_range", calls->GetRange({"two", "none"}, 3, 7, &values), values);
  add_lengths("exists", calls->Lengths({"one"}), {});
  add_lengths("multi_exists", calls->Lengths({"one", "none", "two"}), {});
  const Result<std::vector<std::string>> keys = calls->Scan(ns);
  results.push_back("scan");
  for (const std::string& key : keys.value_or(std::vector<std::string>()))
    results.back() += " " + key;
  add("remove", calls->Remove({"one"}));
  add("multi_remove", calls->Remove({"two", "none"}));
  results.push_back(fmt::format("ping {}", CodeName(calls->Ask(wire::Op::kPing).status().code())));
  return results;
}

class RecordedFramesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto started = Cluster::Start({.servers = 1, .controller_flags = {}, .server_flags = {}});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    auto client = cluster_->Connect(TransportChoice::kTcp);
    ASSERT_TRUE(client.ok()) << client.status();
    ns_ = (*client)->name_space().ref;
    address_ = (*client)->views().view()->nodes()[0].data_address;
  }
  static void TearDownTestSuite() { cluster_.reset(); }

  static inline std::unique_ptr<Cluster> cluster_;
  static inline NamespaceRef ns_;
  static inline std::string address_;
};

// The SDK speaks to the server through this, which writes down what passes.
TEST_F(RecordedFramesTest, RecordsWhatPasses) {
  const char* const file = std::getenv("EMS_RECORD");  // NOLINT(concurrency-mt-unsafe): one thread
  Recording recording;
  {
    ScriptedServer relay([&](WirePeer* client, int) {
      WirePeer server = WirePeer::Connect(address_);
      while (const auto request = ReadFrame(client)) {
        if (!server.Send(request->bytes())) return;
        const auto answer = ReadFrame(&server);
        if (!answer) return;
        recording.requests.push_back(*request);
        recording.answers.push_back(*answer);
        if (!client->Send(answer->bytes())) return;
      }
    });
    OneServerCalls calls(relay.address(), {.ns = ns_});
    recording.results = CallAll(&calls, ns_);
  }
  if (file != nullptr) recording.Save(file);
  EXPECT_EQ(recording.requests.size(), recording.answers.size());
  EXPECT_EQ(recording.results, Recording::Load("wire3.txt").results)
      << "the calls are not those that were recorded";
}

TEST_F(RecordedFramesTest, ARecordedServerIsUnderstoodAsItWas) {
  const Recording recording = Recording::Load("wire3.txt");
  ASSERT_FALSE(recording.requests.empty());
  size_t next = 0;
  std::vector<std::string> differences;
  std::vector<std::string> results;
  {
    ScriptedServer server([&](WirePeer* client, int) {
      while (const auto request = ReadFrame(client)) {
        const bool hello = request->header.op == wire::Op::kHello;
        while (!hello && next < recording.requests.size() &&
               recording.requests[next].header.op == wire::Op::kHello)
          ++next;
        const size_t at = hello ? 0 : next++;
        if (at >= recording.requests.size()) return;
        const Recorded& before = recording.requests[at];
        if (request->header.op != before.header.op || request->rest != before.rest)
          differences.push_back(fmt::format("request {} is {}, and was {}", at,
                                            wire::OpName(request->header.op),
                                            wire::OpName(before.header.op)));
        Recorded answer = recording.answers[at];
        answer.header.request_id = request->header.request_id;
        wire::Seal(&answer.header);
        if (!client->Send(answer.bytes())) return;
      }
    });
    const Recorded& some = recording.requests[1];
    OneServerCalls calls(server.address(), {.ns = some.header.ns()});
    results = CallAll(&calls, some.header.ns());
  }
  EXPECT_THAT(differences, ::testing::IsEmpty());
  EXPECT_EQ(results, recording.results);
}

TEST_F(RecordedFramesTest, AClientOfWire1IsToldWhichVersionsAreRead) {
  const Recording old = Recording::Load("wire1.txt");
  ASSERT_EQ(old.requests.size(), 1U);
  ASSERT_EQ(old.requests[0].header.version, 1);
  WirePeer peer = WirePeer::Connect(address_);
  ASSERT_TRUE(peer.Send(old.requests[0].bytes()));
  const auto answer = ReadFrame(&peer);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.status, wire::WireStatus::kVersion);
  EXPECT_EQ(answer->header.request_id, old.requests[0].header.request_id);
  EXPECT_THAT(answer->rest, HasSubstr("protocol version 1: this server speaks 3 to 3"));
}

TEST_F(RecordedFramesTest, AServerOfWire1IsRefusedByItsVersion) {
  const Recording old = Recording::Load("wire1.txt");
  ASSERT_EQ(old.answers.size(), 2U);
  for (const Recorded& recorded : old.answers) {  // a refusal, and a greeting of its own
    ScriptedServer server([&](WirePeer* client, int) {
      const auto request = ReadFrame(client);
      if (!request) return;
      Recorded answer = recorded;
      answer.header.request_id = request->header.request_id;
      wire::Seal(&answer.header);
      (void)client->Send(answer.bytes());
      (void)client->WaitClosed();
    });
    OneServerCalls calls(server.address(), {.ns = ns_});
    const Status refused = calls.Put({"key"}, 1)[0];
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(Message(refused), HasSubstr("speaks wire 1, this build reads 3 to 3"));
  }
}

}  // namespace
}  // namespace ems::testing
