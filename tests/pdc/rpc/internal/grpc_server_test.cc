// What must hold: a server says where it listens, or why it cannot.
#include "pdc/rpc/internal/grpc_server.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "proto/pdc.grpc.pb.h"

namespace ems::pdc::rpc {
namespace {

TEST(GrpcServerTest, SaysWhereItListens) {
  v1::Decode::CallbackService service;
  const auto tcp = GrpcServer::Start("127.0.0.1:0", &service);
  ASSERT_TRUE(tcp.ok()) << tcp.status();
  EXPECT_EQ((*tcp)->address().rfind("127.0.0.1:", 0), 0U);
  EXPECT_NE((*tcp)->address(), "127.0.0.1:0");
  v1::Decode::CallbackService other;
  const std::string path = fmt::format("unix:/tmp/ems-grpc-{}", ::getpid());
  const auto local = GrpcServer::Start(path, &other);
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ((*local)->address(), path);
}

TEST(GrpcServerTest, AnAddressThatIsTakenOrWrongIsAnError) {
  v1::Decode::CallbackService service, other;
  const auto first = GrpcServer::Start("127.0.0.1:0", &service);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(GrpcServer::Start((*first)->address(), &other).status().code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(GrpcServer::Start("nonsense", &other).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::pdc::rpc
