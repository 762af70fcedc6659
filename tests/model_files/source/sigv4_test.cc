// Against the examples that AWS publishes: those of "Signature Calculations for the Authorization
// Header" in the S3 API reference, and three of the Signature Version 4 test suite.
#include "model_files/source/sigv4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/sha256.h"

namespace ems::model {
namespace {

constexpr std::string_view kS3Time = "20130524T000000Z";

SigV4Key S3Key() {
  return {.access_key = "AKIAIOSFODNN7EXAMPLE",
          .secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
          .region = "us-east-1"};
}

SigV4Request S3Request(std::string_view path, std::string_view query) {
  return {.method = "GET",
          .path = path,
          .query = query,
          .headers = {{"host", "examplebucket.s3.amazonaws.com"},
                      {"x-amz-date", std::string(kS3Time)},
                      {"x-amz-content-sha256", std::string(kEmptyPayloadSha256)}}};
}

std::string SignatureOf(const std::string& authorization) {
  return authorization.substr(authorization.find("Signature=") + 10);
}

std::string SuiteSignature(std::string_view query, std::vector<SigV4Header> more) {
  SigV4Request request{.method = "GET", .path = "/", .query = query, .headers = std::move(more)};
  request.headers.push_back({"host", "example.amazonaws.com"});
  request.headers.push_back({"x-amz-date", "20150830T123600Z"});
  return SignatureOf(SigV4Authorization(request,
                                        {.access_key = "AKIDEXAMPLE",
                                         .secret_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
                                         .region = "us-east-1",
                                         .service = "service"},
                                        "20150830T123600Z"));
}

TEST(SigV4Test, GetObjectWithARangeAsAwsDocumentsIt) {
  SigV4Request request = S3Request("/test.txt", "");
  request.headers.push_back({"range", "bytes=0-9"});
  EXPECT_EQ(SigV4CanonicalRequest(request),
            "GET\n/test.txt\n\n"
            "host:examplebucket.s3.amazonaws.com\n"
            "range:bytes=0-9\n"
            "x-amz-content-sha256:"
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n"
            "x-amz-date:20130524T000000Z\n\n"
            "host;range;x-amz-content-sha256;x-amz-date\n"
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(SigV4StringToSign(request, S3Key(), kS3Time),
            "AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/us-east-1/s3/aws4_request\n"
            "7344ae5b7ee6c3e7e6b0fe0640412a37625d1fbfff95c48bbb2dc43964946972");
  EXPECT_EQ(SigV4Authorization(request, S3Key(), kS3Time),
            "AWS4-HMAC-SHA256 "
            "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(SigV4Test, AParameterWithoutValueAsAwsDocumentsIt) {
  EXPECT_EQ(SignatureOf(SigV4Authorization(S3Request("/", "lifecycle"), S3Key(), kS3Time)),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST(SigV4Test, ListObjectsAsAwsDocumentsItWhateverTheOrderOfParameters) {
  for (const std::string_view query : {"max-keys=2&prefix=J", "prefix=J&max-keys=2"}) {
    EXPECT_EQ(SignatureOf(SigV4Authorization(S3Request("/", query), S3Key(), kS3Time)),
              "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
  }
}

TEST(SigV4Test, VectorsOfTheTestSuite) {
  EXPECT_EQ(SuiteSignature("", {}),
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  EXPECT_EQ(SuiteSignature("Param2=value2&Param1=value1", {}),
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
  EXPECT_EQ(SuiteSignature("", {{"my-header1", " value1"}, {"my-header2", " \"a   b   c\" "}}),
            "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736");
}

TEST(SigV4Test, ThePayloadConstantIsTheDigestOfNothing) {
  EXPECT_EQ(ToHex(Sha256().Digest({})), kEmptyPayloadSha256);
}

TEST(SigV4Test, TheSecretKeyIsInNothingThatIsSent) {
  const std::string authorization = SigV4Authorization(S3Request("/a", ""), S3Key(), kS3Time);
  EXPECT_THAT(authorization, ::testing::Not(::testing::HasSubstr(S3Key().secret_key)));
}

}  // namespace
}  // namespace ems::model
