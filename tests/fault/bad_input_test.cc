// What must hold when peers send nonsense: it is refused or cut within its time, memory stays flat,
// and others do not notice.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cluster/controller_client.h"
#include "common/check.h"
#include "common/hash.h"
#include "proto/data_plane.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_connection.h"
#include "tests/support/verified_load.h"
#include "tests/support/wire_peer.h"

namespace ems::testing {
namespace {

constexpr Duration kSecond = std::chrono::seconds(1);

std::string Frame(const wire::FrameHeader& header, std::string_view key = {},
                  std::string_view body = {}) {
  return MakeFrame(header, key, body);
}

std::string RandomBytes(uint64_t seed, size_t count) {
  std::string bytes;
  for (uint64_t i = 0; bytes.size() < count; ++i) {
    const uint64_t word = Hash64(wire::RawBytes(i), seed);
    bytes.append(AsText(wire::RawBytes(word)));
  }
  bytes.resize(count);
  return bytes;
}

// One server with short time-outs, and a load on it that must not suffer.
class BadInputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Cluster>> cluster =
        Cluster::Start({.servers = 1,
                        .controller_flags = {},
                        .server_flags = {"--set", "network.header_timeout_ms=500", "--set",
                                         "network.transfer_timeout_ms=500"}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = std::move(*cluster);
    Result<std::unique_ptr<Client>> client =
        cluster_->Connect(TransportChoice::kTcp, std::chrono::seconds(2));
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = std::move(*client);
    load_ = std::make_unique<VerifiedLoad>(
        client_.get(),
        VerifiedLoad::Options{.threads = 2, .keys = 50, .value_bytes_max = 64 * kKiB});
    ASSERT_TRUE(load_->WaitForCalls(100, 30 * kSecond));
  }
  void TearDown() override {
    if (load_ == nullptr) return;
    EXPECT_TRUE(load_->WaitForCalls(100, 30 * kSecond));
    load_->Stop();
    const LoadCounts counts = load_->Take();
    EXPECT_TRUE(counts.right()) << counts.ToText();
    EXPECT_TRUE(counts.errors.empty()) << "others suffered: " << counts.ToText();
    EXPECT_GT(counts.hit_share(), 0.3) << counts.ToText();
    EXPECT_TRUE(cluster_->server(0).running());
  }

  const std::string& data_address() { return cluster_->server(0).ready().address; }
  RawConnection Open(const std::string& address) {
    Result<RawConnection> connection = RawConnection::Open(address);
    EMS_CHECK(connection.ok(), "{}", ToString(connection.status()));
    return std::move(*connection);
  }
  wire::FrameHeader Header(wire::Op op) {
    wire::FrameHeader header;
    header.op = op;
    header.request_id = 1;
    header.deadline_ms = 1000;
    header.namespace_id = client_->name_space().ref.id.value();
    header.namespace_generation = client_->name_space().ref.generation;
    header.view = client_->views().view()->version().packed();
    return header;
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<VerifiedLoad> load_;
};

TEST_F(BadInputTest, RandomBytesAndHttpOnTheDataPortCloseTheConnection) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    RawConnection connection = Open(data_address());
    connection.Send(RandomBytes(seed, 64 + seed * 100));
    EXPECT_TRUE(connection.WaitClosed(5 * kSecond)) << "seed " << seed;
  }
  RawConnection http = Open(data_address());
  http.Send("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: someone who lost the way\r\n\r\n");
  EXPECT_TRUE(http.WaitClosed(5 * kSecond));
}

TEST_F(BadInputTest, LengthsAgainstTheRulesNeverReachAnAllocation) {
  const uint64_t before = cluster_->server(0).ResidentBytes();
  for (const uint64_t body_bytes :
       {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 40, 2 * wire::kValueBytesLimit}) {
    wire::FrameHeader header = Header(wire::Op::kPut);
    header.key_bytes = 3;
    header.body_bytes = body_bytes;
    wire::Seal(&header);
    RawConnection connection = Open(data_address());
    connection.Send(std::string(AsText(wire::RawBytes(header))) + "key");
    EXPECT_TRUE(connection.WaitClosed(5 * kSecond)) << body_bytes;
  }
  EXPECT_LT(cluster_->server(0).ResidentBytes(), before + 64 * kMiB);
}

TEST_F(BadInputTest, ADamagedHeaderClosesTheConnection) {
  for (size_t at = 0; at < wire::kHeaderBytes; ++at) {
    std::string frame = Frame(Header(wire::Op::kGet), "key");
    frame[at] = static_cast<char>(frame[at] ^ 0x10);
    RawConnection connection = Open(data_address());
    connection.Send(frame);
    EXPECT_TRUE(connection.WaitClosed(5 * kSecond)) << "byte " << at;
  }
}

TEST_F(BadInputTest, AnUnknownOpIsAnsweredAndTheConnectionGoesOn) {
  RawConnection connection = Open(data_address());
  for (const wire::Op op : {static_cast<wire::Op>(200), wire::Op::kPing}) {
    ASSERT_TRUE(connection.Send(Frame(Header(op))));
    const Result<std::string> answer = connection.Receive(wire::kHeaderBytes, 5 * kSecond);
    ASSERT_TRUE(answer.ok()) << answer.status();
    const auto header = wire::ReadRaw<wire::FrameHeader>(AsBytes(*answer));
    EXPECT_EQ(header.status,
              op == wire::Op::kPing ? wire::WireStatus::kOk : wire::WireStatus::kUnimplemented);
    ASSERT_TRUE(connection.Receive(header.body_bytes, 5 * kSecond).ok());
  }
}

TEST_F(BadInputTest, OneByteASecondIsCutAtTheHeaderTimeout) {
  const std::string frame = Frame(Header(wire::Op::kGet), "key");
  RawConnection connection = Open(data_address());
  bool closed = false;
  const TimePoint start = Clock::System().Now();
  for (size_t at = 0; at < frame.size() && !closed; ++at) {
    connection.Send(frame.substr(at, 1));
    closed = connection.WaitClosed(std::chrono::milliseconds(200));
  }
  EXPECT_TRUE(closed);
  EXPECT_LT(Clock::System().Now() - start, 5 * kSecond);
}

TEST_F(BadInputTest, AWriterThatStopsInTheMiddleOfAValueLeavesNothing) {
  std::string frame = Frame(Header(wire::Op::kPut), "half/written",
                            std::string(1 * kMiB + wire::kTrailerBytes, 'x'));
  RawConnection connection = Open(data_address());
  ASSERT_TRUE(connection.Send(std::string_view(frame).substr(0, frame.size() / 2)));
  EXPECT_TRUE(connection.WaitClosed(5 * kSecond));
  EXPECT_EQ(client_->Get("half/written").status().code(), StatusCode::kNotFound);
}

TEST_F(BadInputTest, AReaderThatNeverReadsIsCutAndOthersAreServed) {
  const std::string value(8 * kMiB, 'v');
  ASSERT_EQ(client_->Put("large", std::string_view(value)), OkStatus());
  wire::FrameHeader header = Header(wire::Op::kGet);
  header.slot = SlotOf(client_->name_space().ref.id, "large").value();
  std::string requests;
  for (uint32_t i = 1; i <= 200; ++i) {
    header.request_id = i;
    requests += Frame(header, "large");
  }
  RawConnection connection = Open(data_address());
  connection.Send(requests, kSecond);
  // 1.6 GB of answers would follow; the server drops them, and this socket then shows its
  // end.
  EXPECT_TRUE(
      Eventually([&] { return !connection.Send(std::string(1, '\0'), kSecond); }, 15 * kSecond))
      << "the connection was still open after 15 s";
}

TEST_F(BadInputTest, AWrongChecksumIsRefused) {
  wire::FrameHeader header = Header(wire::Op::kPut);
  header.slot = SlotOf(client_->name_space().ref.id, "spoilt").value();
  RawConnection connection = Open(data_address());
  ASSERT_TRUE(connection.Send(Frame(header, "spoilt", std::string(5000, 'x') + "no hash!")));
  const Result<std::string> answer = connection.Receive(wire::kHeaderBytes, 5 * kSecond);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(wire::ReadRaw<wire::FrameHeader>(AsBytes(*answer)).status,
            wire::WireStatus::kChecksumMismatch);
  EXPECT_EQ(client_->Get("spoilt").status().code(), StatusCode::kNotFound);
}

TEST_F(BadInputTest, AnOversizeMessageOnTheControlPortIsRefusedAndMemoryStaysFlat) {
  ControllerClient control(cluster_->controller_address(), "test");
  const uint64_t before = cluster_->controller().ResidentBytes();
  for (int i = 0; i < 20; ++i) {
    const Result<NamespaceInfo> found =
        control.GetNamespace(std::string(16 * kMiB, 'n'), Deadline::After(10 * kSecond));
    ASSERT_FALSE(found.ok());
    EXPECT_NE(found.status().code(), StatusCode::kNotFound) << "16 MiB were read and looked up";
  }
  EXPECT_LT(cluster_->controller().ResidentBytes(), before + 64 * kMiB);
  EXPECT_TRUE(control.GetNamespace("default", Deadline::After(5 * kSecond)).ok());
}

TEST_F(BadInputTest, RandomBytesOnTheControlPortHarmNobody) {
  std::vector<RawConnection> kept;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    kept.push_back(Open(cluster_->controller_address()));
    kept.back().Send(RandomBytes(seed, 4000));
  }
  ControllerClient control(cluster_->controller_address(), "test");
  EXPECT_TRUE(control.GetNamespace("default", Deadline::After(5 * kSecond)).ok());
  EXPECT_TRUE(cluster_->controller().running());
}

TEST_F(BadInputTest, NamesAgainstTheRulesAreRefused) {
  ControllerClient control(cluster_->controller_address(), "test");
  for (const std::string& name :
       {std::string(), std::string(129, 'n'), std::string("a/../b"), std::string("a\0b", 3),
        std::string("ключ"), std::string("a b")}) {
    NamespaceInfo wanted;
    wanted.name = name;
    const Result<NamespaceInfo> made =
        control.CreateNamespace(wanted, Deadline::After(5 * kSecond));
    EXPECT_FALSE(made.ok()) << Printable(name);
    EXPECT_NE(made.status().code(), StatusCode::kDeadlineExceeded) << Printable(name);
  }
}

}  // namespace
}  // namespace ems::testing
