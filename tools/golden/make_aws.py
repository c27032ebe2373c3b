#!/usr/bin/env python3
"""Writes tests/golden/aws.json: signatures and endpoints from botocore. Needs botocore (any of 2025 or later) and no
network.
"""
import datetime
import json
import pathlib

import botocore.auth
import botocore.session
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.endpoint_provider import EndpointProvider

OUTPUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "aws.json"
TIME = datetime.datetime(2024, 2, 29, 23, 59, 58)
KEY, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "to/ken+with=signs=="
JSON = "application/x-amz-json-1.1"

# name, method, URL as sent, headers, body, region, service, token
CASES = [
    ("CreateTrainingJob", "POST", "https://api.sagemaker.us-east-1.amazonaws.com/",
     [("Content-Type", JSON), ("X-Amz-Target", "SageMaker.CreateTrainingJob")],
     '{"TrainingJobName":"é-1"}', "us-east-1", "sagemaker", ""),
    ("with a session token", "POST", "https://api.sagemaker.cn-north-1.amazonaws.com.cn/",
     [("Content-Type", JSON), ("X-Amz-Target", "SageMaker.ListTrainingJobs")], "{}", "cn-north-1", "sagemaker", TOKEN),
    ("a port", "POST", "http://localhost:5000/", [("Content-Type", JSON)], "{}", "us-east-1", "logs", ""),
    ("a path encoded twice", "GET", "https://host.example.com/a%20b/%C3%A9/./c//d/../e", [], "", "eu-west-1", "other", ""),
    ("blanks in headers", "GET", "https://host.example.com/", [("My-Header", "  a   b  ")], "", "eu-west-1", "other", ""),
    ("S3: a query that is not sorted", "GET",
     "https://bucket.s3.eu-west-1.amazonaws.com/?prefix=a%2Fb%20c&list-type=2&continuation-token=x%2By%3D%3D&encoding-type=url",
     [], "", "eu-west-1", "s3", TOKEN),
    ("S3: no value", "POST", "https://bucket.s3.eu-west-1.amazonaws.com/key?uploads", [], "", "eu-west-1", "s3", ""),
    ("S3: plus in a name", "GET", "https://bucket.s3.eu-west-1.amazonaws.com/?a%2Bb=1&a=2", [], "", "eu-west-1", "s3", ""),
    ("S3: a path as it is", "GET", "https://bucket.s3.eu-west-1.amazonaws.com/a%20b//c/../d%2Be/.", [], "", "eu-west-1", "s3", ""),
    ("S3: path style", "GET", "https://s3.us-gov-west-1.amazonaws.com/my.bucket/key",
     [("Range", "bytes=5-9"), ("If-Match", '"abc"')], "", "us-gov-west-1", "s3", ""),
    ("S3: a body", "PUT", "https://bucket.s3.eu-west-1.amazonaws.com/key",
     [("Content-Type", "text/plain")], "some body\n", "eu-west-1", "s3", TOKEN),
    ("S3: part", "PUT", "https://bucket.s3.eu-west-1.amazonaws.com/key?partNumber=2&uploadId=a.b_c%2Fd%3D", [], "x" * 1000, "eu-west-1", "s3", ""),
]
REGIONS = ["us-east-1", "eu-central-1", "ap-southeast-5", "il-central-1", "cn-north-1", "us-gov-west-1", "us-gov-east-1",
           "us-iso-east-1", "us-isob-east-1", "eu-isoe-west-1", "us-isof-south-1", "eusc-de-east-1"]


def entry(name, method, url, headers, body, region, service, token):
    return {"name": name, "method": method, "url": url, "headers": headers, "body": body, "region": region, "service": service,
            "s3": service == "s3", "access_key": KEY, "secret_key": SECRET, "token": token,
            "time": TIME.strftime("%Y-%m-%dT%H:%M:%SZ")}


def signatures():
    for case in CASES:
        result = entry(*case)
        _, method, url, headers, body, region, service, token = case
        request = AWSRequest(method=method, url=url, data=body.encode())
        for key, value in headers:
            request.headers.add_header(key, value)
        signer = botocore.auth.S3SigV4Auth if service == "s3" else botocore.auth.SigV4Auth
        signer(Credentials(KEY, SECRET, token or None), service, region).add_auth(request)
        result["authorization"] = request.headers["Authorization"]
        yield result


def endpoints():
    loader = botocore.session.Session().get_component("data_loader")
    partitions = loader.load_data("partitions")
    for service in ["sagemaker", "logs", "sts", "s3"]:
        provider = EndpointProvider(loader.load_service_model(service, "endpoint-rule-set-1"), partitions)
        for region in REGIONS:
            for fips in [False, True]:
                for dual in [False, True]:
                    for bucket in ["my-bucket", "my.bucket"] if service == "s3" else [""]:
                        parameters = {"Region": region, "UseFIPS": fips, "UseDualStack": dual}
                        if bucket:
                            parameters["Bucket"] = bucket
                        try:
                            url = provider.resolve_endpoint(**parameters).url
                        except Exception as problem:  # this combination does not exist in this partition
                            print(f"{service} {region} fips={fips} dual={dual}: {problem}")
                            continue
                        yield {"service": service, "region": region, "fips": fips, "dual_stack": dual, "bucket": bucket, "url": url}


def main():
    botocore.auth.get_current_datetime = lambda *_, **__: TIME
    golden = {"signatures": list(signatures()), "endpoints": list(endpoints())}
    text = ",\n".join(json.dumps(one, ensure_ascii=True) for one in golden["signatures"])
    more = ",\n".join(json.dumps(one) for one in golden["endpoints"])
    OUTPUT.write_text(f'{{"signatures": [\n{text}\n],\n"endpoints": [\n{more}\n]}}\n', encoding="utf-8")
    print(f"{OUTPUT.name}: {len(golden['signatures'])} signatures, {len(golden['endpoints'])} endpoints")


if __name__ == "__main__":
    main()
