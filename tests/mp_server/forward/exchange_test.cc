// What must hold: a server copies and seeks as its configuration says, also where nothing that
// moves is kept.
#include "mp_server/forward/exchange.h"

#include "proto/config.pb.h"
#include "tests/mp_server/forward/forward_rig.h"

namespace ems::server {
namespace {

class ExchangeTest : public ForwardTest {
 protected:
  ExchangeTest() {
    Start(1);
    config_.mutable_forward()->set_keep_s(600);
    config_.mutable_forward()->set_timeout_ms(20);
    config_.mutable_forward()->set_pending_max(16);
    config_.mutable_copies()->set_bytes_per_s(kMiB);
    config_.mutable_copies()->set_queue_max(64);
  }
  config::ServerConfig config_;
};

TEST_F(ExchangeTest, CopiesAreMadeWhateverIsKept) {
  {
    Exchange exchange(config_, &Node(1).store(), &Node(1).ownership(), nullptr, {});
    EXPECT_EQ(exchange.forwarder(), nullptr);
    EXPECT_EQ(Node(1).dram().copies().sink(), exchange.copy_sink());
    exchange.Start();
    exchange.Stop();
  }
  Exchange exchange(config_, &Node(1).store(), &Node(1).ownership(), &Node(1).moved(), {});
  EXPECT_NE(exchange.forwarder(), nullptr);
  exchange.Stop();
  Node(1).dram().copies().SetSink(nullptr);
}

}  // namespace
}  // namespace ems::server
